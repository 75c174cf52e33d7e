"""Whole traces → records on the broker, acknowledged before the store marks them as sent.

A turn that is larger than a record may be goes without its content; a trace with any other record of such a size
is left out and counted, and so is one that is not of its format. Each record names the principal whose token came with
its data. A reward by a principal that may not report any is left out and counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rollbus.producers.imports.formats.episode_events import NO_PRIVACY, EpisodeWriter
from rollbus.producers.imports.formats.formats import Format
from rollbus.producers.imports.formats.trace import TracePart
from rollbus.producers.imports.store import Store
from rollbus.producers.sending.sink import EventSink, Outbound
from rollbus.producers.turns.redaction import Privacy
from rollbus.schemas import codec
from rollbus.schemas.errors import RecordTooLargeError, UnavailableError
from rollbus.schemas.limits import MAX_RECORD_BYTES
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.principals import read_head
from rollbus.schemas.records.drops import DropReason, ProducerReport
from rollbus.schemas.records.events import AliasDeclared, Event, Message, RewardReported, TurnRecorded
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, PRODUCER_REPORTS

MAX_TRACE_BYTES = 64 * 1024 * 1024
"""Of a trace's parts as JSON: a trace is the one thing that is in memory whole."""
BATCH_RECORDS, BATCH_BYTES = 500, 4 * 1024 * 1024
BATCH_TRACES = 200
PATIENCE_S = 60.0
"""How long the broker may take for a batch."""
UNMAPPED = "unmapped."
"""Prefix of the counts of fields that no mapping reads."""


@dataclass(slots=True, kw_only=True)
class TraceConverter:
    """Makes a trace's records, in one format and for one producer."""

    format: Format
    namespace: str = DEFAULT_NAMESPACE
    producer: str = ""
    task: str | None = None
    privacy: Privacy = NO_PRIVACY
    max_record_bytes: int = MAX_RECORD_BYTES
    refused: list[str] = field(default_factory=list)
    """The first reasons of traces that were left out."""

    def records_of(self, trace_id: str, parts: Sequence[TracePart], counts: Counter[str]) -> list[Outbound]:
        """Return a trace's records; raises ForeignDocumentError or RecordTooLargeError."""
        unmapped: Counter[str] = Counter()
        trace = self.format.assemble(trace_id, parts, unmapped)
        counter: Counter[str] = Counter()
        writer = EpisodeWriter(
            trace, self.format.name, producer=self.producer, task=self.task, privacy=self.privacy, counts=counter
        )
        records = []
        for event, head in writer.write():
            principal = read_head(head)
            if principal is not None and isinstance(event, RewardReported) and "feedback" not in principal.grants:
                counts["rewards_not_allowed"] += 1
                continue
            records.append(self._record(event, "" if principal is None else principal.name))
        counts.update(counter)
        counts.update({f"{UNMAPPED}{name}": number for name, number in unmapped.items()})
        if not records:
            counts["traces_empty"] += 1
        return records

    def _record(self, event: Event, principal: str) -> Outbound:
        topic, key = EPISODE_EVENTS, event.root_episode_id
        if isinstance(event, AliasDeclared):
            topic, key = ALIASES, event.alias
        data = codec.encode(event)
        if len(data) + len(key) > self.max_record_bytes:
            if not isinstance(event, TurnRecorded):
                raise RecordTooLargeError(f"its {type(event).__name__} has {len(data)} bytes")
            data = codec.encode(_without_content(event))
        return Outbound(topic.full_name(self.namespace), key.encode(), data, event.occurred_at_ms, principal)

    def report(self, counts: Counter[str], now_ms: int) -> Outbound:
        """Return the counts as a record of `producer-reports`."""
        name = self.producer or "import"
        writer = f"import-{self.format.name}"
        report = ProducerReport(producer=name, writer_id=writer, counters=dict(counts), reported_at_ms=now_ms)
        return Outbound(PRODUCER_REPORTS.full_name(self.namespace), name.encode(), codec.encode(report), now_ms)

    def batches(self, store: Store, traces: Sequence[str]) -> Iterator[tuple[list[Outbound], list[str]]]:
        """Yield records of some traces, with the ids of those that are whole with them; the store counts."""
        records: list[Outbound] = []
        done: list[str] = []
        counts: Counter[str] = Counter()
        size = 0
        for trace_id in traces:
            try:
                if store.bytes_of(trace_id) > MAX_TRACE_BYTES:
                    raise RecordTooLargeError(f"its parts have more than {MAX_TRACE_BYTES} bytes")
                trace_records = self.records_of(trace_id, store.parts_of(trace_id), counts)
                records, size = records + trace_records, size + sum(len(record.value) for record in trace_records)
            except Exception as error:  # a shape that its tool had never before costs its trace, no other
                self.refuse(trace_id, error, counts)
            done.append(trace_id)
            if len(records) >= BATCH_RECORDS or size >= BATCH_BYTES:
                store.count(counts)
                yield records, done
                records, done, counts, size = [], [], Counter(), 0
        store.count(counts)
        if done:
            yield records, done

    def refuse(self, trace_id: str, error: Exception, counts: Counter[str]) -> None:
        """Count a trace that is left out, and keep the first reasons."""
        counts["traces_refused"] += 1
        if len(self.refused) < 5:
            self.refused.append(f"trace {trace_id}: {error or type(error).__name__}")


class Sender:
    """Gives records to a sink, and waits until it has them."""

    def __init__(self, make_sink: Callable[[], EventSink]) -> None:
        self._make_sink = make_sink
        self._sink: EventSink | None = None

    async def send(self, records: Sequence[Outbound]) -> int:
        """Return how many records the broker refused for good; raises UnavailableError."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._sink is None:
                    self._sink = self._make_sink()
                    await self._sink.start()
                return len(await self._sink.send(records)) if records else 0
        except TimeoutError:
            await self.close()
            raise UnavailableError(f"the broker took no records for {PATIENCE_S:.0f} s") from None
        except UnavailableError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the connection."""
        sink, self._sink = self._sink, None
        if sink is not None:
            await sink.close()


async def send_traces(store: Store, converter: TraceConverter, sender: Sender, traces: Sequence[str]) -> None:
    """Send traces and mark them as sent, batch by batch; raises UnavailableError, and those sent so far are marked."""
    for records, done in converter.batches(store, traces):
        if refused := await sender.send(records):
            store.count({"records_refused": refused})
        store.mark_sent(done)
        store.commit()


def _without_content(turn: TurnRecorded) -> TurnRecorded:
    """Return a turn that says in place of its content why it has none."""
    return replace(
        turn,
        added_messages=(),
        prefix_count=0,
        prefix_hash="",
        completion=Message(role="assistant"),
        prompt_token_ids=None,
        completion_token_ids=None,
        logprobs=None,
        tools=None,
        trainable=False,
        untrainable_reason=DropReason.TOO_LARGE.value,
    )
