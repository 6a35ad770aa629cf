"""Public side: the market, fixed before any record is read.

Read `market`: resources, bounds, the grid of exact integers, the sensitivity of each query, and the
market file.
"""
