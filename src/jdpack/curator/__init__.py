"""Curator side: everything that reads the records again after a run, or instead of one.

Read in this order:

* `check`: read everything before a run, and spend nothing.
* `finished_run`: a finished run, together with its records.
* `verify_run`: check that everybody got what the billboard says.
* `reports`, `curators_report` and `decision_margins`: the two reports of a run.
* `letters`: what an organiser sends to each person.
* `optimum`: the best allocation without privacy, with its proof.
* `truth`: the records in their own units.
* `compare`, `comparison` and `comparison_page`: policies measured against it.
"""
