"""The largest size of a record, on every topic and in every client, and the limits that follow from it.

No record is split. A record above the limit is dropped and counted, with the reason `too_large`.
"""

MAX_RECORD_BYTES = 32 * 1024 * 1024
"""Key and value of a record, before compression. A turn of 20 MB fits; a broker takes three such in one request (its
`socket.request.max.bytes`). `KafkaConnection.max_record_bytes` sets another limit."""
LEAST_RECORD_BYTES, MOST_RECORD_BYTES = 1_000_000, 64 * 1024 * 1024
"""Bounds of that setting. With the least, a message and a dead letter fit into a broker's default limit of 1 MiB."""
FRAMING_BYTES = 48_576
"""Headers, batch framing and the head of a changelog row, in addition to the record."""
MAX_MESSAGE_BYTES = MAX_RECORD_BYTES + FRAMING_BYTES
"""Limit of topics and brokers, and of a client's request."""
FETCH_BYTES = 3 * 1024 * 1024
"""What a consumer fetches from a partition at a time. It may be less than the largest record: since Kafka 0.10.1 the
first record of a fetch comes whole, whatever its size, and aiokafka changes the order of the partitions each time."""
MAX_LETTER_BYTES = 512 * 1024
"""A dead letter keeps a value of this size whole, and the two ends of a larger one."""
MAX_LETTER_KEY_BYTES = 10_000
