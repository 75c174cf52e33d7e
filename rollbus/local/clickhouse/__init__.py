"""ClickHouse's engine in this process, behind a small HTTP endpoint that speaks its protocol.

Read `service` first (the process), then `endpoint` (HTTP), `engine` (which statement may run, and on which handle of
chDB) and `answers` (how it runs).
"""
