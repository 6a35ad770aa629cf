"""Public side: the market, fixed before any record is read.

Read in this order:

* `grid`: the units and limits of the grid of exact integers.
* `market`: the resources and the bounds that every record obeys.
* `file`: parsing of the market file.
"""
