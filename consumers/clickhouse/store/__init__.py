"""ClickHouse itself: settings, the client, column blocks and migrations.

Read `client` first, then `columns` (values to an insert's bytes), `migrator`, and `cluster` (the same on many servers).
"""
