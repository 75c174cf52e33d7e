"""A bounded queue and the thread that empties it into a sink; knows bytes and counts, nothing of their content.

In: `Item`s from any thread. Out: records in an `EventSink`: Kafka, memory, or a spool on disk before either.
Read first: queue, then courier (the thread), sink, kafka_sink, spool_sink, process_hooks (fork and exit).
"""
