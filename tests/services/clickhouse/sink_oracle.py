"""What the tables must hold, worked out from the records in Kafka, and what they do hold."""

from typing import Any

from rollbus.consumers.clickhouse.questions.saved_questions import ask
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
    offset_by_row: dict[str, dict[Any, int]] = {}
    async with KafkaSinkLog(settings.kafka, settings.namespace) as log:
        for (topic, number), span in (await log.spans([topic.name for topic in TOPICS])).items():
            buffer = PartitionBuffer(namespace=settings.namespace, topic=topic, partition=number, start=span.begin)
            async for records in log.read((topic, number), span):
                for record in records:
                    buffer.add(record)
            cut_rows = buffer.cut()
            for table, rows in cut_rows.tables.items() if cut_rows else ():
                for row in rows:
                    offset_by_key = offset_by_row.setdefault(table, {})
                    key = tuple(row[name] for name in keys[table])
                    offset_by_key[key] = min(offset_by_key.get(key, row["kafka_offset"]), row["kafka_offset"])
    return {table: (len(offset_by_key), sum(offset_by_key.values())) for table, offset_by_key in offset_by_row.items()}


def stored_counts(settings: SinkSettings, *, final: bool = True) -> dict[str, tuple[int, int]]:
    sql = "SELECT table FROM system.columns WHERE database = currentDatabase() AND name = 'kafka_timestamp'"
    parts = [
        f"SELECT '{table}', count(), sum(kafka_offset) FROM {table} {'FINAL' if final else ''}"
        for (table,) in ask(settings.clickhouse, sql).rows
    ]
    table_counts = ask(settings.clickhouse, " UNION ALL ".join(parts)).rows
    return {table: (count, total) for table, count, total in table_counts if count}
