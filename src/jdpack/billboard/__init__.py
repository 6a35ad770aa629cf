"""Public side: the billboard, the one record of a run that everybody may read.

Read in this order:

* `lines`: what stands on a billboard.
* `board`: the billboard, and what may follow what.
* `schema`: its lines as JSON.
* `file`: the file that holds them, and the journal that keeps a line from being torn.
"""
