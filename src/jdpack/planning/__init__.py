"""Public side: what a budget buys, before any record is read.

Read in this order:

* `headroom`: the share of supply that a run must keep free.
* `remedies`: what helps if that is too much.
* `plan`: the plan, and the check that every run starts with.
* `page`: the plan as a page.
"""
