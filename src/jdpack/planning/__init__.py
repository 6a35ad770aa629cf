"""Public side: what a budget buys, before any record is read.

Read in this order:

* `headroom`: the share of supply that a run must keep free.
* `remedies`: what helps if that is too much.
* `prepare`: the check that every run and every plan starts with.
* `plan`: the plan.
* `page`: the plan as a page.
"""
