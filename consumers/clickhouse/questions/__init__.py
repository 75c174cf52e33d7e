"""A saved question in, a printed answer out.

Read `saved` first; `output`, `chart` and `parquet` are the forms of an answer.
"""
