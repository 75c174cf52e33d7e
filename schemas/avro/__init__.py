"""Avro: a record's body as bytes, and the schemas that are the contract with other languages.

types        a record's dataclass in; its schema, and the `.avsc` file of each version
native       records to bodies and back, in C; `by_fastavro` does the same where there is no compiler
"""
