"""A saved question in, a printed answer out.

Read `saved_questions` first; `output`, `chart` and `parquet` are the forms of an answer.
"""
