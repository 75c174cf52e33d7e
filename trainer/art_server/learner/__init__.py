"""A batch in, changed weights out.

Read `torch_service` first (a batch → the next version), then `update` (the optimizer step, and the same passes over
hinted turns) and `rows` (sequences to tensors). `agreement` holds a batch against the model before it is trained.
"""
