"""A real Kafka broker on this machine: jars found, configuration written, process started.

Read `service` first.
"""
