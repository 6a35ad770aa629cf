"""Private side: where the codes are, and the exact sums over them. All engines give the same bits.

Read in this order:

* `base`: what every engine can do.
* `best_response`, `curvature` and `giving`: what agents take at given prices, how close they are
  to another choice, and what is given; the compiled kernels.
* `screening`: which agents need not be asked again.
* `shard`: some of the agents on one machine. `sharded` adds shards up, `batched` asks in batches.
* `memory`, `mapped` (with `code_store`) and `ray`: the three engines.
* `allocation_files`: where a cluster writes what agents get.
* `settings`: which engine to use, and how to open it.
"""
