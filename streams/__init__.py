"""From the event log to training batches: what enters are episode events, what leaves are batches and drops.

Files in reading order:

    stage, state      what a stage is, and the rows it remembers
    alias, assembly, scoring, grouping, curriculum, batching      the stages' decisions: pure
    rewards/          reward functions by name
    ticker            the clock that is written into the log
    transaction       a batch of records, a pure step, a Kafka transaction
    transport, app    Faust hosts the workers
"""
