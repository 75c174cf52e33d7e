"""A command's wishes in, a checked plan out: which range, which stages, which changes.

Read `plan` first, then `range` (what is read) and `changes` (what is decided differently); `range_on_broker` asks
the broker for offsets.
"""
