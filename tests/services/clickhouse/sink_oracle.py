"""What the tables must hold, worked out from the records in Kafka, and what they do hold."""

from typing import Any

from rollbus.consumers.clickhouse.questions.saved import ask
from rollbus.consumers.clickhouse.sink.kafka_log import KafkaSinkLog
from rollbus.consumers.clickhouse.sink.ranges import PartitionBuffer
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.schemas.topics import TOPICS


async def oracle(settings: SinkSettings) -> dict[str, tuple[int, int]]:
    """Rows and the sum of their offsets, table by table, as they follow from the records in Kafka."""
    statement = "SELECT name, sorting_key FROM system.tables WHERE database = currentDatabase() AND sorting_key != ''"
    keys = {
        name: key.replace("trajectory_key, ", "").split(", ") for name, key in ask(settings.clickhouse, statement).rows
    }
    kept: dict[str, dict[Any, int]] = {}
    async with KafkaSinkLog(settings.kafka, settings.namespace) as log:
        for (topic, number), span in (await log.spans([topic.name for topic in TOPICS])).items():
            buffer = PartitionBuffer(namespace=settings.namespace, topic=topic, partition=number, start=span.begin)
            async for records in log.read((topic, number), span):
                for record in records:
                    buffer.add(record)
            made = buffer.cut()
            for table, rows in made.tables.items() if made else ():
                for row in rows:
                    known = kept.setdefault(table, {})
                    key = tuple(row[name] for name in keys[table])
                    known[key] = min(known.get(key, row["kafka_offset"]), row["kafka_offset"])
    return {table: (len(known), sum(known.values())) for table, known in kept.items()}


def stored(settings: SinkSettings, *, final: bool = True) -> dict[str, tuple[int, int]]:
    sql = "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'kafka_timestamp'"
    parts = [
        f"SELECT '{table}', count(), sum(kafka_offset) FROM {table} {'FINAL' if final else ''}"
        for (table,) in ask(settings.clickhouse, sql).rows
    ]
    found = ask(settings.clickhouse, " UNION ALL ".join(parts)).rows
    return {table: (count, total) for table, count, total in found if count}
