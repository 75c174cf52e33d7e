"""Records to encoded items in the delivery queue: the way out of a recorder, with the wishes that hold for all of it.

    record ─codec▶ frame ─Item▶ delivery

What is made late (`submit_late`) is encoded in the delivery thread.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rollbus.producers.episode.first_turns import FirstTurns
from rollbus.producers.episode.settings import RecorderSettings
from rollbus.producers.sending.books import FRAME_BYTES, Item, size_of
from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.guard import HostGuard
from rollbus.producers.sending.queue import Delivery
from rollbus.producers.sending.sink import EventSink, Outbound
from rollbus.producers.turns.advice import IN_EPISODE
from rollbus.producers.turns.redaction import Field, Redactor
from rollbus.schemas import codec
from rollbus.schemas.errors import RecordTooLargeError
from rollbus.schemas.ids import PAUSE_PREFIX
from rollbus.schemas.records.drops import ProducerReport
from rollbus.schemas.records.events import TurnRecorded
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, PRODUCER_REPORTS, Topic

logger = logging.getLogger(__name__)

CHILD_SEPARATOR = "//"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
SECRET, MIN_SECRET_CHARACTERS = "[api key]", 8
"""Text that replaces a client's key; shorter ones are placeholders."""


def address_of(episode_id: str) -> tuple[Topic, str]:
    """Return the topic of an episode's events, and their key; one that is known by its pause alone is an alias."""
    root_id = root_of(episode_id)
    return (ALIASES if root_id.startswith(PAUSE_PREFIX) else EPISODE_EVENTS), root_id


def root_of(episode_id: str) -> str:
    """Return the outermost parent's id: a child's id is ROOT//UUID, so feedback finds its partition by the id alone.

    Any other id is its own root, such as a host's `tenant/UUID`: forgetting one order must not forget the tenant.
    """
    root, _, suffix = episode_id.rpartition(CHILD_SEPARATOR)
    return root if root and _UUID.fullmatch(suffix) else episode_id


class Outbox:
    """Redacts, encodes and queues what one recorder writes; counts it, and what fails on the way."""

    def __init__(
        self,
        settings: RecorderSettings,
        make_sink: Callable[[], EventSink],
        counts: Counters,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        """Write as a new writer."""
        self.settings, self.counts, self.privacy = settings, counts, settings.privacy
        self.guard = HostGuard(counts)
        self.clock_ms, self.new_id = clock_ms, new_id
        self.writer_id = new_id()
        """New per process start and fork."""
        self.add_version: Callable[[Mapping[str, Any], str], Mapping[str, Any]] | None = None
        """Returns a call's arguments with the version that its episode, by id, gets; None leaves them as they are."""
        self.on_turn: Callable[[TurnRecorded, str], None] | None = None
        """Sees every turn, with the hook that saw the call, in the delivery thread."""
        self.first_turns = FirstTurns()
        self._secrets: set[str] = set()
        self.delivery = Delivery(
            make_sink,
            counts,
            max_events=settings.max_queue_events,
            max_bytes=settings.max_queue_bytes,
            report=self.report,
            report_interval_s=settings.report_interval_s,
        )

    def after_fork(self) -> None:
        """Become a writer of its own in a child process."""
        self.writer_id = self.new_id()
        self.first_turns = FirstTurns()
        self.counts.after_fork()
        self.delivery.after_fork()

    def count_call_outside(self, remedy: str = f"make it {IN_EPISODE}") -> None:
        """Count a call that is in no episode; of the first one, say that such calls are not recorded."""
        self.counts.add("calls_outside_episode")
        if self.counts.get("calls_outside_episode") == 1:
            logger.warning("rollbus: a call is in no episode, so it is not recorded: %s", remedy)

    def keep_secret(self, secret: object) -> None:
        """Take this text out of every error that is recorded: a key that servers may repeat."""
        if isinstance(secret, str) and len(secret) >= MIN_SECRET_CHARACTERS:
            self._secrets.add(secret)

    def redacted(self, text: str | None, field: Field) -> str | None:
        """Return a text that is a field of its own as it may be recorded; a redaction that fails is counted."""
        redactor = Redactor(self.privacy)
        text = redactor.text(text, field)
        if redactor.error is not None:
            self.guard.failed("redact", redactor.error)
        return text

    def redacted_error(self, text: str | None) -> str | None:
        """Return an error's text as it may be recorded, without the keys that servers repeat in it."""
        for secret in tuple(self._secrets) if text else ():
            text = (text or "").replace(secret, SECRET)
        return self.redacted(text, "errors")

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
            "producer": self.settings.producer,
            "environment": self.settings.environment,
        }

    def submit(self, topic: Topic, key: str, record: Any, *, episode_id: str, urgent: bool = False) -> bool:
        """Encode and queue a record; False (and counted) where there is no room.

        Raises RecordTooLargeError, and counts, where no message holds it.
        """
        item = self._item(topic, key, record, episode_id, record.occurred_at_ms)
        self.counts.add("events_emitted")
        if item.size > self.settings.max_record_bytes + FRAME_BYTES:
            self.counts.add("events_dropped.too_large")
            raise RecordTooLargeError(f"the {type(record).__name__} has {item.size - FRAME_BYTES} bytes")
        if self.delivery.offer(item, urgent=urgent):
            return True
        self.counts.add("events_dropped.queue_full")
        return False

    def submit_late(
        self, topic: Topic, key: str, encode: Callable[[], bytes], *, episode_id: str, size: int, at_ms: int
    ) -> bool:
        """Queue a record that is encoded in the delivery thread; False (and counted) where there is no room."""
        self.counts.add("events_emitted")
        if self.delivery.offer(Item(episode_id, partial(self._make, topic, key, encode, at_ms), size)):
            return True
        self.counts.add("events_dropped.queue_full")
        return False

    def purge(self, episode_id: str, reason: str) -> int:
        """Drop an episode's queued events and return how many there were."""
        purged = self.delivery.purge(episode_id)
        if purged:
            self.counts.add(f"events_dropped.{reason}", purged)
        return purged

    @property
    def counters(self) -> Mapping[str, int]:
        """Return what was recorded, delivered and lost so far."""
        return {**self.counts.snapshot(), "events_queued": self.delivery.pending_events}

    def report(self) -> Item | None:
        """Return the counters as a record."""
        return self.guard.call("report", self._report_item, default=None)

    def submit_report(self) -> None:
        """Queue the last counters."""
        if (item := self.report()) is not None:
            self.counts.add("events_emitted")
            if not self.delivery.offer(item, urgent=True):
                self.counts.add("events_dropped.closed")

    def _report_item(self) -> Item:
        now_ms = self.clock_ms()
        report = ProducerReport(
            producer=self.settings.producer or f"pid-{os.getpid()}",
            writer_id=self.writer_id,
            counters=dict(self.counters),
            reported_at_ms=now_ms,
        )
        return self._item(PRODUCER_REPORTS, report.producer, report, "", now_ms)

    def _make(self, topic: Topic, key: str, encode: Callable[[], bytes], at_ms: int) -> tuple[Outbound, ...]:
        return self.guard.call("record", lambda: self._frames(topic, key, encode(), at_ms), default=())

    def _frames(self, topic: Topic, key: str, data: bytes, at_ms: int) -> tuple[Outbound, ...]:
        name, key_bytes = topic.full_name(self.settings.namespace), key.encode()
        return (Outbound(name, key_bytes, data, at_ms),)

    def _item(self, topic: Topic, key: str, record: Any, episode_id: str, at_ms: int) -> Item:
        frames = self._frames(topic, key, codec.encode(record), at_ms)
        return Item(episode_id, None, size_of(frames), made_frames=frames)
