"""From the event log to training batches: what enters are episode events, what leaves are batches and drops.

Files in reading order:

    stage, state      what a stage is, and the rows it remembers
    stage_state, clock, deadlines, rows, chunking                 what every stage has
    alias, assembly, scoring, grouping, curriculum, batching      the stages' decisions: pure
    histories, grouping_maths, lineage, curriculum_<mode>         their arithmetic
    rewards/          reward functions by name
    stages, flow      which stages there are, and all of them over a log in memory
    ticker            the clock that is written into the log
    transaction       a batch of records, a pure step, a Kafka transaction
    transport, app    Faust hosts the workers
"""
