"""Public side: small exact tools that every room may use.

Read in any order:

* `checks`: checks of input values, with errors that name the field.
* `portable_math`: exp and log with the same bits on every machine.
* `coins`: one agent's coin.
* `batches`: the public random order of the agents, split into batches.
* `language`: the words of pages and letters, from one file per language.
* `by_name`: one number per resource, by name and in order.
* `notebook`: what objects look like in a notebook.
"""
