"""The same log, decided again. Recorded records of a range come in; another namespace's topics and a manifest go out.

plan       what to replay: range, stages, changed configurations
decide     the stages' own pure steps, one after the other, without Kafka
kafka      records read, outputs and manifest written, one replay of a name at a time
compare    what came out differently, and why
"""
