"""A packed batch in, changed weights out.

Read `update` first, then `rows` (samples to tensors); `torch_service` (our own) and `art_service` (ART's) are the two
services that ART can drive. `hinted` scores a batch's tokens again before the update, behind users' words.
"""
