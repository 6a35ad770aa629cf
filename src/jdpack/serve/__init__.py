"""Public side: the billboard page over HTTP, live, for many readers.

Read in this order:

* `server`: starts the server and opens its socket.
* `connections`: which connections stay open, and for how long.
* `app`: requests and answers.
* `site`: what readers see right now.
* `folder`: reads the folder of a run.
"""
