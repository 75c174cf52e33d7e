"""Whether an input is still the log that a position is of: by its ids, and by the last record before the position."""

from rollbus.runtime.log_mark import LogId, LogMark, describe_difference
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.shared_reading import SharedReading


async def find_difference(reading: SharedReading, partition: Partition, mark: LogMark, log: LogId) -> str | None:
    """Say why the partition is not of the mark's log; None if it is."""
    difference = describe_difference(mark, log, None)
    if difference is not None or mark.last_offset < 0:
        return difference
    return describe_difference(mark, log, await reading.read_one(*partition, mark.last_offset))
