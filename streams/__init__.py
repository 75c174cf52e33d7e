"""From the event log to training batches: what enters are episode events, what leaves are batches and drops.

Files in reading order:

    stage, state      what a stage is, and the rows it remembers
    stage_state, clock, deadlines, rows, chunking, recent         what every stage has
    alias, assembly, scoring, grouping, group_scoring,            the stages' decisions: pure
      curriculum, batching, resample
    histories, grouping_maths, lineage, curriculum_<mode>         their arithmetic
    rewards/          reward functions by name
    stages, flow      which stages there are, and all of them over a log in memory
    ticker            the clock that is written into the log
    processing, large_rows                                        records to what their transaction writes: pure
    runner            a partition's batches, each whole in one transaction
    transaction       the Kafka transactions that a stage's partitions share in a process
    claims, claims_kafka                                          whose a partition is: whom a new owner must fence
    changelog_kafka, output_kafka                                 its state restored, its records written
    transport, app    Faust hosts the stages
    worker            a process: stages, ticker, watchdog, metrics
    topics, topics_kafka, acls, names, repair_kafka, run_status,  what an operator needs
      operator_kafka, sending_kafka
    replay/                                                       the same log, decided again; shadows; comparisons
    forget, forget_kafka                                          who is not to be used any more
"""
