"""Public side: the billboard page over HTTP, live, for many readers.

Read in this order:

* `server`: the start, and the socket.
* `connections`: which connections stay open, and for how long.
* `app`: requests and answers.
* `site`: what readers see at a moment.
* `folder`: what is read from the folder of a run.
"""
