"""Private side: the agents' rows from a database instead of files.

Read `database` first: what a query must return, and how its rows become pieces. `duckdb_file` and
`spark` open what ADBC has no driver for.
"""
