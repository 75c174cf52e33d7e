"""Recorded records in, decided records out, without Kafka. All pure.

Read `chain` first (stage after stage), then `steps` (one stage) and `lane` (one partition's order). `digest` sums
up what was made, so that two replays can be compared.
"""
