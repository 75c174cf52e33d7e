"""The local stack: a real Kafka broker and ClickHouse's engine behind its HTTP protocol, on one machine.

Settings (data folder and ports) come in; running services that listen on loopback only go out. Read `stack` first (up,
status, down), then `process` (start a program, know it again, end it), `kafka` and `clickhouse`.
"""
