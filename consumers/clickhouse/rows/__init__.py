"""Records in, table rows out: one module per family of records. All pure.

Read `rows` first: it lists the tables of each record type. Then read the family.
"""
