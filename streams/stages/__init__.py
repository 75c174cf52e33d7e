"""The stages' decisions: a record, the state and stream time come in; new state and outputs go out. All pure.

Read `assembly` first, then `scoring`, `grouping`, `curriculum`, `delivery`; `alias` and `resample` are the small
ones. Nothing here reads a clock, draws at random, or touches Kafka, files or the network.
"""
