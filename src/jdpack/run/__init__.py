"""Curator side: a run from start to finish. It joins the private side and the public side.

Read in this order:

* `solve`: start or resume a run.
* `arguments`: the arguments of a run, checked first.
* `loop`: ask the policy, release, post, repeat.
* `lifecycle`: from reserving the budget to telling the ledger, whatever fails in between.
* `result`: what a run gives back.
* `curator_page`: the page of the curator's report; `curator/reports.py` fills it in.
* `folder` and `run_file`: the files that a run leaves, and what `resume` needs.
* `linear_program`: a packing linear program as a market.
* `bounds`: bounds for a market from its records, privately, before any run.
* `summary`: the closing summary in the terminal.
* `local`: runs in which each agent adds its own noise, and trusts no curator.
* `demo`: a market to try.
* `granted`: who gets what, in the words of the table.
* `write_back`: results in a table of a database.
"""
