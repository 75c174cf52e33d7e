"""Everything that reaches the broker: in come settings, topics, offsets and records; out come records, offsets and lag.

The errors of aiokafka leave this room as ours. Its consumers, producers and admin clients are built nowhere else.
Read first `clients`: our standard settings, how a client starts and how it stops; then `reading`, `writing` and `lag`.
"""
