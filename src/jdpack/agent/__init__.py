"""Public side: what an agent gets, and why. An agent's own computer can run all of it.

Read in this order:

* `allocate`: the agent's function. Billboard and own record in, share out.
* `options`: the record of an agent, checked and turned into codes.
* `explain`: why an agent gets what it gets, and how close the decision was.
* `check_code`: a short code of a record, which shows people that they mistyped it.
* `own_record`: reads the record from a small file.
* `in_words`: the explanation as text for a terminal.
"""
