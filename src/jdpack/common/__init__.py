"""Public side: small exact tools that every room may use.

Read in any order:

* `checks`: checked values, with an error that names the field.
* `portable_math`: exp and log with the same bits on every machine.
* `coins`: one agent's coin.
* `batches`: the public random order of the agents, and its parts.
"""
