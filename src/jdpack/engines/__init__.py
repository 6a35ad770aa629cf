"""Private side: engines hold the codes and compute exact sums. All of them give the same bits.

Read in this order:

* `base`: what every engine can do.
* `best_response`, `curvature` and `giving`, the compiled kernels: what agents take at given prices,
  how close they are to another choice, and what they are given.
* `screening`: which agents need not be asked again.
* `shard`: some of the agents, on one machine. `sharded` adds shards up, `batched` asks one batch.
* `memory`, `mapped` (with `code_store`) and `ray`: the engines that read the records.
* `sql` (with `warehouse`, `sql_encoding` and `sql_queries`): the engine for records that stay in a
  database.
* `allocation_files`: the files to which a cluster writes what agents get.
* `settings`: which engine to use, and how to open it.
"""
