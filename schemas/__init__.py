"""The vocabulary: what everybody imports, and what imports nobody. Dataclasses become bytes on a topic, and come back.

Files in reading order:

    events, messages, tokens, ids        what a producer states of an episode, and the names that follow from it
    trajectories, groups, steps          what stages, curriculum and trainer make of it
    control, drops, replays              ticks, configuration and commands; what went no further; what was replayed
    topics, registry                     where each record travels
    codec, chunks, joining               records to bytes and back, large ones in parts
    avro_types, avro_compiled, making    schemas from the dataclasses, and quick ways to read and write them;
      avro_native                        the quickest in C
    soundness, lineage, attempts         rules that records share
    kafka_connection, payload_kafka,     to the broker, to payload by its location, and away from a broken client
      stopping_kafka
    config, errors                       what every process has; `lazy`: names imported when they are used
"""
