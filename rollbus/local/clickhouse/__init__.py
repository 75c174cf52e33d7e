"""ClickHouse's engine in this process, behind a small HTTP endpoint that speaks its protocol.

Read `service` first (the process), then `endpoint` (HTTP) and `engine` (chDB).
"""
