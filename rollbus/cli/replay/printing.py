"""What `rollbus replay` prints: its progress, its result, the list of replays, and how two of them differ."""

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rollbus.terminal.output import Console, OutputTable, format_count, format_time, show_rows
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.runtime.health.heart import Report
    from rollbus.schemas.records.replays import ReplayManifest, ReplayRange
    from rollbus.streams.replay.compare.differences import ReplayComparison
    from rollbus.streams.replay.kafka.range_run import ProgressCallbacks


@dataclass(slots=True)
class ShadowProgress:
    """What a shadow has read so far, for its heartbeat."""

    name: str
    records: int = 0

    def watch(self) -> "ProgressCallbacks":
        """Return the callbacks that the shadow reports to."""
        from rollbus.streams.replay.kafka.range_run import ProgressCallbacks

        return ProgressCallbacks(progress=self._progress)

    def report(self) -> "Report":
        """Say how much it has read; ticks alone are records, so a shadow that stands reads none."""
        from rollbus.runtime.health.heart import Report

        return Report(holds=(f"shadow {self.name}",), work=self.records)

    def _progress(self, offsets: int, records: int, size: int) -> None:
        self.records += records


class ProgressLine:
    """How far a replay is in its range, with throughput, remaining time and stream time."""

    def __init__(self) -> None:
        self.records = self.size = 0
        self.seconds = 0.0
        self._start, self._stack = time.monotonic(), ExitStack()
        self._stream_time, self._offsets, self._total = "", 0, 0

    def __enter__(self) -> "ProgressLine":
        self._progress = self._stack.enter_context(show_progress("replaying", "offsets"))
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start
        self._stack.close()

    def watch(self) -> "ProgressCallbacks":
        """Return the callbacks that a replay reports to."""
        from rollbus.streams.replay.kafka.range_run import ProgressCallbacks

        return ProgressCallbacks(begin=self._begin, progress=self._advance, stream_time=self._set_stream_time)

    def _begin(self, ranges: "tuple[ReplayRange, ...]") -> None:
        self._start = time.monotonic()
        self.records = self.size = self._offsets = 0
        self._total = sum(part.to_offset - part.from_offset for part in ranges)

    def _advance(self, offsets: int, records: int, size: int) -> None:
        self.records += records
        self.size += size
        self._offsets += offsets
        elapsed_s = max(time.monotonic() - self._start, 1e-3)
        speed = f"{self.records / elapsed_s:,.0f} records/s, {self.size / elapsed_s / 1e6:.1f} MB/s"
        self._progress.what = f"replaying {self._stream_time} ({speed})"
        self._progress(self._offsets, self._total)

    def _set_stream_time(self, ms: int) -> None:
        self._stream_time = _time(ms)


def show_manifest(
    manifest: "ReplayManifest",
    *,
    dry_run: bool = False,
    drops: Mapping[str, int] = MappingProxyType({}),
    failures: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Print a manifest, how many drops there are of each reason, and by which error most scores failed."""
    console = Console()
    for span in manifest.missing:
        console.print(f"missing: {span.topic}[{span.partition}] {span.from_offset} … {span.to_offset - 1}")
    table = OutputTable("stage", "records in", "records out", "dead letters", "digest")
    for digest in manifest.digests:
        table.add_row(
            digest.stage, f"{digest.records_in:,}", f"{digest.records_out:,}", str(digest.dead_letters), digest.digest
        )
    console.print(table)
    written_counts = ", ".join(f"{count:,} {topic}" for topic, count in manifest.records.items())
    console.print(f"{'would write' if dry_run else 'wrote'} {written_counts or 'nothing'}")
    if drops:
        reasons = sorted(drops.items(), key=lambda pair: (-pair[1], pair[0]))
        console.print(f"drops: {', '.join(f'{count:,} {reason}' for reason, count in reasons)}")
    if failures:
        error, count = min(failures.items(), key=lambda pair: (-pair[1], pair[0]))
        console.print(f"{count:,} of {sum(failures.values()):,} scores that failed: {error}", soft_wrap=True)
    if (letters := sum(digest.dead_letters for digest in manifest.digests)) and not dry_run:
        list_them = f"ROLLBUS_NAMESPACE={manifest.namespace} rollbus dead-letters list"
        console.print(f"{format_count(letters, 'dead letter')}: `{list_them}` shows them", soft_wrap=True)
    if manifest.state == "following":
        console.print(f"shadow {manifest.name!r} is in {manifest.namespace}*; the same command continues it")
    elif not dry_run:
        console.print(f"replay {manifest.name!r} is complete in {manifest.namespace}*")


def show_replays(manifests: "Iterable[ReplayManifest]", namespace: str) -> None:
    """Print a line for each replay of a namespace."""
    from rollbus.streams.replay.plan.plan import CHAIN

    table = OutputTable("name", "state", "stages", "from (stream time, UTC)", "to", "changed", "records", "code")
    for manifest in manifests:
        changes = ", ".join(_describe_changes(manifest)) or "–"
        span = (_time(manifest.from_ms), _time(manifest.to_ms))
        records = f"{sum(manifest.records.values()):,}" if manifest.records else "–"
        table.add_row(
            manifest.name,
            manifest.state,
            "all" if manifest.stages == CHAIN else " → ".join(manifest.stages),
            *span,
            changes,
            records,
            manifest.code_hash[:8],
        )
    show_rows(table, f"no replay of {namespace!r} yet: `rollbus replay --from '2h ago' --as NAME` makes one")


def show_comparison(comparison: "ReplayComparison", namespace: str) -> None:
    """Print what is equal, what differs, and the SQL questions that show more."""
    from rollbus.streams.replay.plan.plan import namespace_of

    console = Console()
    alike = ", ".join(f"{count:,} {kind}" for kind, count in comparison.same.items()) or "nothing"
    console.print(f"{comparison.left} and {comparison.right} agree on: {alike}")
    for title, edge in (("different", False), ("cut by the range's edge", True)):
        rows = [difference for difference in comparison.differences if difference.edge is edge]
        if rows:
            table = OutputTable("what", "how", "why", "count", "examples", title=title, title_justify="left")
            for row in rows:
                table.add_row(row.kind, row.what, row.cause, f"{row.count:,}", "\n".join(row.examples))
            console.print(table)
    if not comparison.inside:
        console.print("no difference inside the range")
    sides = [
        namespace if name == "live" else namespace_of(name, namespace) for name in (comparison.left, comparison.right)
    ]
    load = " and ".join(
        f"`rollbus replay load {name}`" for name in (comparison.left, comparison.right) if name != "live"
    )
    console.print(f"see more in SQL{load and f', after {load}'}:")
    ask = f"--param namespace={sides[0]} --param"
    console.print(f"  scores: rollbus sql run live_against_replay {ask} replay={sides[1]}", soft_wrap=True)
    console.print(f"  groups, batches: rollbus sql run shadow_against_live {ask} other={sides[1]}", soft_wrap=True)


def _describe_changes(manifest: "ReplayManifest") -> list[str]:
    """Return what a replay changed, named as its options."""
    stages = {override.stage for override in manifest.overrides}
    changes = ["reward"] * ("scoring" in stages) + ["grouping or curriculum"] * ("grouping" in stages)
    return (
        changes + ["rewards of the end"] * (manifest.rewards == "end") + ["rescored"] * (manifest.scores == "rescored")
    )


def _time(ms: int | None) -> str:
    if not ms:
        return "–" if ms is None else "the beginning"
    with suppress(OverflowError, OSError, ValueError):
        return format_time(ms)
    return str(ms)
