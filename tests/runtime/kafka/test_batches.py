"""A batch that no client of ours wrote becomes one record, which says what is wrong with it."""

from rollbus.runtime.kafka.batches import COUNTED_FROM_BYTES, MOST_HEADERS, BoundedBatches
from tests.hostile.raw_batches import make_batch, make_record


def describe_refusal(record: bytes) -> str:
    """Return what a large batch of one record becomes."""
    (unreadable,) = BoundedBatches(make_batch([record], 0)).next_batch()
    return str(unreadable.value.decode())


def test_a_record_with_too_many_headers_is_named_by_them() -> None:
    headers = [(b"h", b"")] * (MOST_HEADERS + 1)
    record = make_record(0, b"k", bytes(COUNTED_FROM_BYTES), headers)
    assert describe_refusal(record).endswith(f"a record has {MOST_HEADERS + 1} headers; {MOST_HEADERS} are the most")


def test_a_record_without_a_length_is_named_by_it() -> None:
    assert describe_refusal(bytes(COUNTED_FROM_BYTES)).endswith("a record says that it has 0 bytes")
