"""Readers that write rollbus topics elsewhere: every topic comes in, ClickHouse tables go out.

`clickhouse/` holds the sink, its migrations and the saved questions.
"""
