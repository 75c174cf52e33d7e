"""The same log, decided again: recorded records of a range in, another namespace's topics and a manifest out.

Files in reading order:

    plan              what to replay: stages, configurations, how rewards and scores are treated
    rounds            the partitions of a recorded topic, merged by (tick, partition, offset)
    chain             the stages' own pure steps, one after the other, without Faust
    recorded          what live wrote down of the outside world: scores, outcomes, policy versions, configurations
    digest, code      what came out in one line per stage, and which code made it
    output            where records go; in memory here, on Kafka in writer_kafka
    range_kafka       offsets, times and ticks to offsets; what is gone
    source_kafka      a bounded range, read
    manifest_kafka    which replays there are, and which count
    run_kafka         one replay from start to manifest; shadow: one that follows the live topics
    compare, compare_kafka   what came out otherwise, and why
"""
