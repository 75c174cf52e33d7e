"""ClickHouse itself: settings, the client, column blocks and migrations.

Read `client` first, then `columns` (values to an insert's bytes) and `migrator`.
"""
