"""ClickHouse itself: settings, the client, column blocks and migrations.

Read `client` first, then `columns` (values to an insert's bytes), `migrator`, `retention` (the tables' TTLs), and
`cluster` (the same on many servers).
"""
