"""Public side: files that survive a crash, and addresses. Nothing here knows about markets.

Read in any order:

* `files`: read a regular file up to a limit; write a file whole or not at all.
* `new_folder`: make a folder, never over an existing one.
* `hash_chain`: lines of JSON, each with the hash of the previous line.
* `address`: addresses of databases, without passwords.
"""
