"""Batches in, steps out: each batch becomes exactly one step or a recorded reason.

Read `loop` first, then `opening` (which members are trained, with which hints), `step` (the transaction that closes
it) and `accounting` (the records). `taking_over` and `between_steps` act before and between steps.
"""
