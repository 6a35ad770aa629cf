"""Public side: what all runs on the same people spend together.

Read in this order:

* `entries`: the entries of a ledger, and which may follow which.
* `balance`: how the budgets of several runs add up.
* `ledger`: create, reserve, post, cancel, finish, verify.
* `progress`: how far each run has come, so that a folder from a backup is refused.
* `sqlite_file`: its transactions.
* `postgres`: the same in a PostgreSQL database, for several curators at once.
* `account`: the data set that pays for a run.
* `text`: a ledger in words and as JSON.
"""
