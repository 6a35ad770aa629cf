"""Public side: the market, fixed before any record is read.

Read in this order:

* `grid`: the units and limits of the grid of exact integers.
* `totals`: bounds on what an option asks for of several resources together.
* `person`: what one person may ask for in total, over several requests.
* `groups`: caps and reserves of groups of agents, as separate resources.
* `market`: the resources and the bounds that every record obeys.
* `file`: parsing of the market file.
* `template`: a market file with comments, from a few answers or with other bounds.
* `levels`: the scale on which agents are counted to choose bounds.
"""
