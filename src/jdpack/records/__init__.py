"""Private side: from tables of agents to exact integer codes.

Read in this order:

* `locate`, `readers`, `parquet_guard` and `schema`: find the files, refuse harmful ones, check the
  columns.
* `databases/`: the same rows from a database.
* `tables` and `arrow`: turn any table or array into rows of options.
* `source`: where the records of a run come from.
* `ids` and `bulk_coins`: who the agents are, and their coins.
* `encode`, `encode_kernels` and `codes`: check the amounts and turn them into codes.
* `person_kernels`: leave out what people ask for beyond their bounds.
* `levels`: how many agents ask for how much, to choose bounds.
* `digest`: a number that changes whenever a record does.
* `refusals`: what is wrong with records, in the same words everywhere.
* `hashes`, `kernels` and `threads`: compiled hashes, what compiles kernels, and the thread pool
  that runs them.
"""
