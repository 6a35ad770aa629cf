"""Public side: the billboard, the one record of a run that everybody may read.

Read in this order:

* `board`: the lines, what may follow what, and how they are read back.
* `file`: the file that holds them, and the journal that keeps a line from being torn.
"""
