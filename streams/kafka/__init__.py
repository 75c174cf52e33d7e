"""What a namespace has on the broker: its name comes in, topics come out; `runtime/kafka` has clients and records.

Read `names` first, then `topics` (which topics a namespace has) and `topics_on_broker` (creating and checking them).
"""
