"""The marks in `sink_ranges`: which log each partition was when its newest range was written."""

from rollbus.consumers.clickhouse.sink.log import Partition
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import RANGES
from rollbus.runtime.log_mark import LogMark, parse_note


def read_noted_marks(client: ClickHouse, namespace: str) -> dict[Partition, LogMark]:
    """Return the newest mark of each partition; none of those that a rebuild from an archive has noted."""
    _, rows = client.query(
        f"SELECT kafka_topic, kafka_partition, argMax(log, next_offset) FROM {RANGES} "
        "WHERE namespace = {namespace:String} AND log != '' GROUP BY kafka_topic, kafka_partition",
        {"namespace": namespace},
    )
    marks = {(str(topic), int(number)): parse_note(note) for topic, number, note in rows}
    return {partition: mark for partition, mark in marks.items() if mark is not None}
