"""Public side: the billboard, the one log of a run that everybody may read.

Read in this order:

* `lines`: the kinds of lines on a billboard.
* `board`: the billboard, and the order that its lines must have.
* `schema`: its lines as JSON.
* `file`: its file, and the journal that protects it from torn lines.
* `plot`: how prices and demand moved, as a figure.
"""
