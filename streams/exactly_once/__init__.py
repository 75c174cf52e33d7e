"""A batch of records in, one Kafka transaction out: outputs, changelog rows and offsets commit together or not at all.

Read `runner` first (a partition's batches), then `transaction` (what the partitions of a process share), `claims`
(the owner that a new one must fence) and `changelog` (state restored). `processing` is the pure part.
"""
