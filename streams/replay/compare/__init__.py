"""Two sets of records in, their differences with causes out.

Read `differences` first; `side` is one of the two sets, `live` reads the live one from the log.
"""
