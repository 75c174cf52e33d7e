"""The sequences of a batch in, changed weights out.

Read `torch_service` first (a plan → the next version), then `update` (the optimizer step) and `rows` (sequences to
tensors). `agreement` holds a batch against the model before it is trained, `hinted` scores its tokens behind users'
words, and `art_advantages` computes the advantages that ART would.
"""
