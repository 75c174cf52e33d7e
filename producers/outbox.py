"""Records to encoded items in the delivery queue: the way out of a recorder.

    record ─codec, chunks▶ frames ─Item▶ delivery

What is made late (`submit_late`) is encoded in the delivery thread.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rollbus.producers.counters import Counters
from rollbus.producers.delivery import Delivery, Item, size_of
from rollbus.producers.guard import Guard
from rollbus.producers.settings import RecorderSettings
from rollbus.producers.sink import EventSink, Outbound
from rollbus.schemas import chunks, codec
from rollbus.schemas.drops import ProducerReport
from rollbus.schemas.topics import PRODUCER_REPORTS, Topic

CHILD_SEPARATOR = "/"


def root_of(episode_id: str) -> str:
    """Return the outermost parent's id: a child's id starts with it, so that feedback finds its partition by the id
    alone.
    """
    return episode_id.partition(CHILD_SEPARATOR)[0]


class Outbox:
    """Encodes and queues what one recorder writes."""

    def __init__(
        self,
        settings: RecorderSettings,
        make_sink: Callable[[], EventSink],
        counts: Counters,
        clock_ms: Callable[[], int],
        writer_id: Callable[[], str],
    ) -> None:
        """Ask `writer_id` for the writer that a report comes from."""
        self._settings, self._counts, self._writer_id = settings, counts, writer_id
        self._guard = Guard(counts)
        self.clock_ms = clock_ms
        self.delivery = Delivery(
            make_sink,
            counts,
            max_events=settings.max_queue_events,
            max_bytes=settings.max_queue_bytes,
            report=self.report,
            report_interval_s=settings.report_interval_s,
        )

    def envelope(
        self,
        *,
        event_id: str,
        episode_id: str,
        writer_id: str,
        sequence: int,
        started_at_ms: int,
        at_ms: int | None = None,
    ) -> dict[str, Any]:
        """Return the fields that every event carries; it happened now unless `at_ms` says when."""
        return {
            "event_id": event_id,
            "episode_id": episode_id,
            "root_episode_id": root_of(episode_id),
            "writer_id": writer_id,
            "sequence": sequence,
            "occurred_at_ms": self.clock_ms() if at_ms is None else at_ms,
            "episode_started_at_ms": started_at_ms,
            "producer": self._settings.producer,
            "environment": self._settings.environment,
        }

    def submit(self, topic: Topic, key: str, record: Any, *, episode_id: str, urgent: bool = False) -> bool:
        """Encode and queue a record; False (and counted) where there is no room."""
        item = self._item(topic, key, record, episode_id, record.occurred_at_ms)
        self._counts.add("events_emitted")
        if self.delivery.offer(item, urgent=urgent):
            return True
        self._counts.add("events_dropped.queue_full")
        return False

    def submit_late(
        self, topic: Topic, key: str, encode: Callable[[], bytes], *, episode_id: str, size: int, at_ms: int
    ) -> bool:
        """Queue a record that is encoded in the delivery thread; False (and counted) where there is no room."""
        self._counts.add("events_emitted")
        if self.delivery.offer(Item(episode_id, partial(self._make, topic, key, encode, at_ms), size)):
            return True
        self._counts.add("events_dropped.queue_full")
        return False

    def purge(self, episode_id: str) -> int:
        """Drop an episode's queued events and return how many there were."""
        purged = self.delivery.purge(episode_id)
        if purged:
            self._counts.add("events_dropped.queue_full", purged)
        return purged

    @property
    def counters(self) -> Mapping[str, int]:
        """Return what was recorded, delivered and lost, as it stands."""
        return {**self._counts.snapshot(), "events_queued": self.delivery.pending_events}

    def report(self) -> Item | None:
        """Return the counters as a record."""
        return self._guard.call("report", self._report_item, default=None)

    def submit_report(self) -> None:
        """Queue the last counters."""
        if (item := self.report()) is not None:
            self._counts.add("events_emitted")
            if not self.delivery.offer(item, urgent=True):
                self._counts.add("events_dropped.closed")

    def _report_item(self) -> Item:
        now_ms = self.clock_ms()
        report = ProducerReport(
            producer=self._settings.producer or f"pid-{os.getpid()}",
            writer_id=self._writer_id(),
            counters=dict(self.counters),
            reported_at_ms=now_ms,
        )
        return self._item(PRODUCER_REPORTS, report.producer, report, "", now_ms)

    def _make(self, topic: Topic, key: str, encode: Callable[[], bytes], at_ms: int) -> tuple[Outbound, ...]:
        return self._guard.call("record", lambda: self._frames(topic, key, encode(), at_ms), default=())

    def _frames(self, topic: Topic, key: str, data: bytes, at_ms: int) -> tuple[Outbound, ...]:
        name, key_bytes = topic.full_name(self._settings.namespace), key.encode()
        return tuple(Outbound(name, key_bytes, part, at_ms) for part in chunks.split(data))

    def _item(self, topic: Topic, key: str, record: Any, episode_id: str, at_ms: int) -> Item:
        frames = self._frames(topic, key, codec.encode(record), at_ms)
        return Item(episode_id, None, size_of(frames), made=frames)
