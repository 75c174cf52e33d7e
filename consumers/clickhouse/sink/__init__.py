"""Topics in, inserted blocks out, offsets committed after the insert is acknowledged.

Read `sink` first (the order that makes delivery safe), then `ranges` (deterministic blocks) and `kafka_source`.
"""
