"""Public side: what a run must do next, what it costs, and what it proves at the end.

Read in this order:

* `charge`: what a step costs.
* `run_state`: a run followed from its billboard. Live runs, resume and verify all use it.
* `bounds`: what the releases so far say about loads and value.
* `grants`: how far what coins grant is from the optimum.
* `closing`: the last releases of every run.
* `certificate`: the bounds that follow from them, with proofs.
* `verify`: the check that anybody can run.
"""
