"""Public side: files that survive a crash, with nothing about markets in them.

Read in any order:

* `files`: read a regular file up to a limit; write a file whole or not at all.
* `new_folder`: make a folder, never over another.
* `hash_chain`: lines of JSON, each with the hash of the line before.
"""
