"""Curator side: a run from start to end. It joins the private side and the public side.

Read in this order:

* `solve`: start or resume a run.
* `arguments`: what a run is asked for, checked first.
* `loop`: ask the policy, release, post, repeat.
* `lifecycle`: from reserving the budget to telling the ledger, whatever fails in between.
* `result`: what a run gives back.
* `curator_page`: the curator's report.
* `folder` and `run_file`: the files that a run leaves, and what a resume needs.
* `summary`: the closing summary in the terminal.
* `local`: runs without a curator; each agent adds its own noise.
* `demo`: a market to try.
"""
