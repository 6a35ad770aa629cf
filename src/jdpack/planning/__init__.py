"""Public side: what a budget buys, before any record is read.

Read in this order:

* `headroom`: the share of supply that a run must keep free.
* `remedies`: what would help if that is too much.
* `prepare`: the checks that every run and every plan starts with.
* `several_runs`: what each of several runs on the same people gets.
* `plan`: the plan.
* `text`: the plan in words.
* `page`: the plan as a page.
* `bounds`: bounds for a market from noisy counts, and what they would clamp.
"""
