"""From the event log to training batches. Episode events come in; batches and drops go out.

Rooms in reading order:

    state           what a stage is, and the rows that it remembers; pure
    stages          the decisions: alias, assembly, scoring, grouping, curriculum, delivery, resample; pure
    rewards         reward functions by name
    evidence        is one version better than another; pure
    pipeline        which stages there are
    exactly_once    a batch of records becomes one Kafka transaction
    kafka           names and topics
    worker          a process: Faust, the ticker, the watchdog, metrics
    replay          the same log, decided again
    operate         what an operator does: ACLs, repair, forgetting, a run's status
"""
