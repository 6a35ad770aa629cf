"""Public side: the market, fixed before any record is read.

Read in this order:

* `grid`: the units and limits of the grid of exact integers.
* `market`: resources, bounds, and the sensitivity of each query.
* `file`: the market file.
"""
