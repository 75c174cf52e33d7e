"""A log that can be read again from its beginning: the protocol, and its form as files.

An export holds one Avro container file per partition, with the records as Kafka gave them, and `log.json`, with the
offsets that it covers. Tables can be rebuilt from it when Kafka's retention has long deleted the records.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import fastavro

from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.schemas.errors import ConfigurationError

Partition = tuple[str, int]
"""Topic without the namespace, and number."""
BLOCK = 1_000
"""Records handed over at a time."""

_FIELDS: dict[str, Any] = {
    "offset": "long",
    "timestamp_ms": "long",
    "key": ["null", "bytes"],
    "value": ["null", "bytes"],
}
_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "LogRecord",
        "namespace": "rollbus",
        "fields": [{"name": name, "type": type_} for name, type_ in _FIELDS.items()],
    }
)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets begin … end − 1 of a partition."""

    begin: int
    end: int


class Log(Protocol):
    """The records of a namespace, partition by partition."""

    async def spans(self, topics: Sequence[str]) -> Mapping[Partition, Span]:
        """Return the partitions of these topics and their offsets; raises UnavailableError."""

    def read(self, partition: Partition, span: Span) -> AsyncIterator[Sequence[KafkaRecord]]:
        """Yield the committed records of a span, in order."""


class FileLog:
    """A log in a folder, as `export_log` writes it."""

    def __init__(self, folder: Path) -> None:
        """Read the list of partitions; raises ConfigurationError for a folder without one."""
        path = folder / "log.json"
        if not path.is_file():
            raise ConfigurationError(f"{path} does not exist; `rollbus sink export FOLDER` writes one")
        self._folder = folder
        self._spans = {
            (entry["topic"], entry["partition"]): Span(entry["begin"], entry["end"])
            for entry in json.loads(path.read_text())["partitions"]
        }

    async def spans(self, topics: Sequence[str]) -> Mapping[Partition, Span]:
        """Return the partitions of these topics in the folder."""
        return {partition: span for partition, span in self._spans.items() if partition[0] in topics}

    async def read(self, partition: Partition, span: Span) -> AsyncIterator[Sequence[KafkaRecord]]:
        """Yield a partition's records."""
        topic, number = partition
        block: list[KafkaRecord] = []
        with (self._folder / _file_name(partition)).open("rb") as file:
            for entry in fastavro.reader(file):
                row: Any = entry
                if span.begin <= row["offset"] < span.end:
                    block.append(KafkaRecord(topic, number, **row))
                if len(block) >= BLOCK:
                    yield block
                    block = []
        yield block


async def export_log(
    log: Log, topics: Sequence[str], folder: Path, *, progress: Callable[[int, int], None] = lambda done, of: None
) -> int:
    """Write a log's records into a folder that exists; return how many. `progress` takes offsets done and of all."""
    spans = await log.spans(topics)
    total, done, records = sum(span.end - span.begin for span in spans.values()), 0, 0
    for partition, span in spans.items():
        with (folder / _file_name(partition)).open("wb") as file:
            writer = fastavro.write.Writer(file, _SCHEMA, codec="deflate")
            async for block in log.read(partition, span):
                for record in block:
                    writer.write({name: getattr(record, name) for name in _FIELDS})
                records += len(block)
                if block:
                    progress(done + block[-1].offset + 1 - span.begin, total)
            writer.flush()
        done += span.end - span.begin
    partitions = [{"topic": topic, "partition": number, **asdict(span)} for (topic, number), span in spans.items()]
    (folder / "log.json").write_text(json.dumps({"partitions": partitions}, indent=1) + "\n")
    progress(total, total)
    return records


def _file_name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}.avro"
