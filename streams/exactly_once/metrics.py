"""Counters of each partition, and their text for Prometheus."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollbus.streams.exactly_once.batch import Batch
    from rollbus.streams.exactly_once.processing import Processed


@dataclass(slots=True)
class PartitionMetrics:
    """What one partition of a stage has done since this process opened it."""

    stage: str
    partition: int
    position: int = 0
    lag: int = 0
    records: int = 0
    outputs: int = 0
    dead_letters: int = 0
    leaps: int = 0
    changelog_rows: int = 0
    forgotten: int = 0
    transactions: int = 0
    failures: int = 0
    step_s: float = 0.0
    commit_s: float = 0.0
    restored_rows: int = 0
    open_s: float = 0.0

    def passed(self, batch: "Batch") -> None:
        """Count ticks without effect, which wait for a later transaction."""
        self.position = batch.end
        self.records += len(batch.records)

    def committed(self, batch: "Batch", processed: "Processed", *, step_s: float, commit_s: float) -> None:
        """Count one transaction."""
        self.position = batch.end
        self.records += len(batch.records)
        self.outputs += processed.outgoing
        self.dead_letters += processed.dead_letters
        self.leaps += processed.leaps
        self.changelog_rows += len(processed.changelog)
        self.forgotten = processed.forgotten
        self.transactions += 1
        self.step_s += step_s
        self.commit_s += commit_s


_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("records_total", "counter", "records", "Input records that were taken in."),
    ("outputs_total", "counter", "outputs", "Records that the stage emitted."),
    ("dead_letters_total", "counter", "dead_letters", "Input records that could not be read."),
    ("leaps_total", "counter", "leaps", "Ticks from ahead of the broker's clock, which count as of its time."),
    ("changelog_rows_total", "counter", "changelog_rows", "State rows written."),
    (
        "forgotten_keys",
        "gauge",
        "forgotten",
        "Keys that the state forgot to make room for newer ones, since it was opened.",
    ),
    ("transactions_total", "counter", "transactions", "Committed transactions that the partition had a part in."),
    ("failures_total", "counter", "failures", "Transactions that failed and were begun again."),
    ("step_seconds_total", "counter", "step_s", "Time spent in decoding, stepping and encoding."),
    ("commit_seconds_total", "counter", "commit_s", "Time from the end of a step until its transaction has committed."),
    ("restored_rows", "gauge", "restored_rows", "State rows read when the partition was opened."),
    ("open_seconds", "gauge", "open_s", "How long opening the partition took."),
    ("position", "gauge", "position", "Input position up to which the state has come."),
    ("lag", "gauge", "lag", "Readable input records behind the position."),
)
"""Name, kind, field, help."""


def prometheus_text(partitions: Iterable[PartitionMetrics]) -> str:
    """Return the metrics in the text format that Prometheus scrapes."""
    rows = sorted(partitions, key=lambda m: (m.stage, m.partition))
    lines = []
    for name, kind, attribute, text in _ROWS:
        full = f"rollbus_stream_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [f'{full}{{stage="{m.stage}",partition="{m.partition}"}} {getattr(m, attribute)}' for m in rows]
    return "\n".join(lines) + "\n"
