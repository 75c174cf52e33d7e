"""The same log, decided again: recorded records of a range in, another namespace's topics and a manifest out.

Files in reading order:

    plan, changes     what to replay: stages, configurations, how rewards and scores are treated
    rounds            the partitions of a recorded topic, merged by (tick, partition, offset)
    reader, stages    one stage with its states; the stages of a plan
    steps, chain      the stages' own pure steps, one after the other, without Faust; rounds and ticks through them
    left_out          what is of forgotten episodes
    made, lane        the first input's stages partition by partition, and what they made in one order again
    lane_kafka, lanes_kafka   a lane in a process of its own, and that process as its starter sees it
    processes         how many such processes a replay is worth
    recorded          what live wrote down of the outside world: scores, outcomes, policy versions, configurations
    digest, code      what came out in one line per stage, and which code made it
    output            where records go; in memory here, on Kafka in writer_kafka
    payload           trajectories by location, for whoever asks about groups anew
    range_kafka       offsets, times and ticks to offsets; what is gone
    source_kafka      a bounded range, read
    lease_kafka       one replay of a name at a time
    manifest_kafka, namespace_kafka   which replays there are, and which count; their topics
    chain_kafka, passage_kafka        a chain connected to what live wrote down; a range on its way through it
    run_kafka         one replay from start to manifest; shadow: one that follows the live topics
    side, compare, compare_kafka   what came out otherwise, and why
"""
