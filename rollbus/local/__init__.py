"""The local stack: a real Kafka broker and ClickHouse's engine behind its HTTP protocol, on one machine.

Enters: a `StackSettings` (data folder and ports). Leaves: running services that listen on loopback only.

Reading order: `settings` → `processes` (start, know again and end one) → `ports` → `service` (a row of the table) →
`kafka_jars`, `kafka_config`, `kafka` → `clickhouse`, `clickhouse_endpoint` and the modules it names → `stack` (up,
status, down) → `supervisor` (services that end with their starter).
"""
