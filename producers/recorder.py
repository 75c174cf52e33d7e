"""The recorder: what `rollbus.init` returns, and the wiring of the producer.

    call of the wrapped client ─capture▶ Exchange ─turn_record▶ Draft ─episode▶ event ─codec, chunks▶ Item ─delivery▶
    EventSink

Nothing here raises into the host, blocks it, or keeps more than the queue's bounds; what is lost is counted in
`counters`.
"""

import functools
import logging
import os
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload
from urllib.parse import unquote

from rollbus.producers import context, process_hooks, tracing
from rollbus.producers.counters import Counters
from rollbus.producers.delivery import Delivery, Item
from rollbus.producers.episode import CHILD_SEPARATOR, KEYED, Episode, number, root_of
from rollbus.producers.guard import Guard
from rollbus.producers.metrics import prometheus_text
from rollbus.producers.redaction import Redactor
from rollbus.producers.sampling import is_sampled
from rollbus.producers.scope import EpisodeScope
from rollbus.producers.settings import RecorderSettings
from rollbus.producers.sink import EventSink, Outbound
from rollbus.schemas import chunks, codec, ids
from rollbus.schemas.drops import ProducerReport
from rollbus.schemas.events import RewardReported
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, PRODUCER_REPORTS, Topic

logger = logging.getLogger(__name__)
Client = TypeVar("Client")
Function = TypeVar("Function", bound=Callable[..., Any])
SYNC_FLUSH_S = 5.0
"""How long a `sync` episode may hold its caller back while the broker is away."""
MAX_UNSAMPLED_IDS = 10_000
"""Episodes remembered as not recorded, so that their feedback is not sent either."""


class Recorder:
    """Records episodes and sends them."""

    def __init__(
        self,
        settings: RecorderSettings,
        make_sink: Callable[[], EventSink],
        *,
        counters: Counters | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """Record under these settings into the sink that `make_sink` makes; the sink is not asked before the first
        event.
        """
        self.settings, self.privacy = settings, settings.privacy
        self._clock_ms, self._new_id = clock_ms, new_id
        self.counts = counters or Counters()
        self.guard = Guard(self.counts)
        self.writer_id = new_id()
        """New per process start and fork."""
        self.bind = context.bind
        self.function = context.function
        self._delivery = Delivery(
            make_sink,
            self.counts,
            max_events=settings.max_queue_events,
            max_bytes=settings.max_queue_bytes,
            report=self._report_item,
            report_interval_s=settings.report_interval_s,
        )
        self._live: weakref.WeakSet[Episode] = weakref.WeakSet()
        self._unsampled: OrderedDict[str, None] = OrderedDict()
        process_hooks.register(self)

    # Episodes

    @overload
    def episode(self, function: Function, /) -> Function: ...
    @overload
    def episode(
        self,
        function: None = None,
        /,
        *,
        task: str | None = None,
        example_id: str | None = None,
        group_id: str | None = None,
        group_size: int | None = None,
        agent: str | None = None,
        labels: Mapping[str, str] | None = None,
        episode_id: str | None = None,
        parent: Episode | None = None,
        resampled: bool = False,
        traceparent: str | None = None,
        sync: bool = False,
    ) -> EpisodeScope: ...
    def episode(self, function: Any = None, /, *, sync: bool = False, **fields: Any) -> Any:
        """Return a block (`with`, `async with`) or decorator that is one run of the agent on one task.

        Inside another episode it is a child of it, unless `parent` names another. `sync` waits on leaving, for some
        seconds at most, until its events are out: for functions whose process may be frozen once they return.
        """
        after = functools.partial(self.flush, SYNC_FLUSH_S) if sync else None
        scope = EpisodeScope(lambda name: self.start(**{**fields, "task": fields.get("task") or name or ""}), after)
        return scope if function is None else scope(function)

    def start(
        self,
        *,
        task: str = "",
        example_id: str | None = None,
        group_id: str | None = None,
        group_size: int | None = None,
        agent: str | None = None,
        labels: Mapping[str, str] | None = None,
        episode_id: str | None = None,
        parent: Episode | None = None,
        resampled: bool = False,
        traceparent: str | None = None,
    ) -> Episode:
        """Open an episode without making it the current one; the caller calls its `end`.

        `traceparent` is the trace it belongs to; by default the parent's, else that of OpenTelemetry's current span.
        """
        fields = {
            "example_id": None if example_id is None else str(example_id),
            "group_id": None if group_id is None else str(group_id),
            "group_size": group_size,
            "agent": agent if agent is not None else self.settings.agent,
            "labels": labels,
            "resampled": resampled,
        }
        episode = self.guard.call("start", self._start, task, episode_id, parent, fields, traceparent, default=None)
        return episode or self._silent(episode_id)

    def attach(self, origin: str | Mapping[str, str]) -> EpisodeScope:
        """Return a block that goes on with an episode of another process: its id, or the headers that it sent.

        The episode stays the other process's to end; here only this writer's part is closed.
        """
        return EpisodeScope(
            lambda _: self.guard.call("attach", self._attach, origin, default=None) or self._silent(None)
        )

    def headers(self, episode: Episode | None = None) -> dict[str, str]:
        """Return the headers that carry an episode (the current one) to another process; none outside of one."""
        episode = episode or self.current_episode()
        return episode.headers() if episode is not None and episode.recording else {}

    def current_episode(self) -> Episode | None:
        """Return the innermost episode of the running code, of this recorder."""
        episode = context.current_episode()
        while episode is not None and not self.owns(episode):
            episode = episode.parent
        return episode

    def owns(self, episode: Episode) -> bool:
        """Say whether the episode was opened by this recorder."""
        return episode._recorder is self

    # Facts beside the model's calls

    def wrap(
        self,
        client: Client,
        *,
        episode: Episode | None = None,
        function: str | None = None,
        logprobs: str | None = None,
        hide_injected: bool = True,
    ) -> Client:
        """Return a client of the same type, on the same connections, whose calls are recorded.

        Calls belong to `episode`, else to the current one; outside of any they pass untouched. `logprobs` overrides
        the recorder's mode.
        """
        if not self.settings.enabled:
            return client
        from rollbus.producers.openai_client import wrap_client

        options = (episode, function, logprobs or self.settings.logprobs, hide_injected)
        return self.guard.call("wrap", wrap_client, client, self, *options, default=client)

    def feedback(
        self,
        target: str | Episode | None = None,
        *,
        reward: float | None = None,
        name: str = "reward",
        key: str | None = None,
        source: str = "user",
        alias: str | None = None,
        turn: str | None = None,
        supersedes: str | None = None,
        retracted: bool = False,
        comment: str | None = None,
    ) -> str | None:
        """Report what an episode was worth, from any process, before, during or long after it; return the event's id.

        `target` is an episode or its id; any other text is taken as an alias. The same `key` again is the same report.
        """
        fields = {
            "name": name,
            "value": reward,
            "source": source,
            "turn_event_id": turn,
            "supersedes": supersedes,
            "retracted": retracted,
        }
        return self.guard.call("feedback", self._feedback, target, alias, fields, key, comment, default=None)

    def alias(self, episode: Episode | str, alias: str) -> None:
        """Let feedback find an episode by another name, such as an order number."""
        self.guard.call("alias", lambda: self._handle(episode).alias(alias), default=None)

    def tool(self, name: str, *, episode: Episode | None = None, **fields: Any) -> str | None:
        """Record a tool call of an episode (the current one); see `Episode.tool`."""
        episode = episode or self.current_episode()
        if episode is None:
            self.counts.add("calls_outside_episode")
            return None
        return self.guard.call("tool", episode.tool, name, default=None, **fields)

    # Running

    @property
    def counters(self) -> Mapping[str, int]:
        """Return what was recorded, delivered and lost, as it stands."""
        return {**self.counts.snapshot(), "events_queued": self._delivery.pending_events}

    def metrics(self) -> str:
        """Return the same as Prometheus' text format, for the host to serve."""
        counters = {**self.counters, "bytes_queued": self._delivery.pending_bytes}
        return prometheus_text(counters, healthy=self.healthy, producer=self.settings.producer)

    @property
    def healthy(self) -> bool | None:
        """Whether the sink took the last events; None before the first."""
        return self._delivery.healthy

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all events are acknowledged; False where that took longer (then they go on being sent)."""
        return self.guard.call("flush", self._delivery.flush, timeout, default=False)

    def close(self, timeout: float = 10.0) -> bool:
        """Send the last counters, flush and stop; later events are counted as dropped. Returns whether all is out."""
        return self.guard.call("close", self._close, timeout, default=False)

    def _close(self, timeout_s: float) -> bool:
        process_hooks.unregister(self)
        for episode in tuple(self._live):
            if not episode.owner:
                episode.end()
        if self.counts.get("events_emitted") and (item := self._report_item()) is not None:
            self.counts.add("events_emitted")
            if not self._delivery.offer(item, urgent=True):
                self.counts.add("events_dropped.closed")
        return self._delivery.close(timeout_s)

    def after_fork(self) -> None:
        """Become a writer of its own in a child process."""
        self.writer_id = self._new_id()
        self.counts.after_fork()
        self._delivery.after_fork()
        for episode in tuple(self._live):
            episode.after_fork(self._new_id())

    # For episodes

    def envelope(
        self, *, event_id: str, episode_id: str, writer_id: str, sequence: int, started_at_ms: int
    ) -> dict[str, Any]:
        """Return the fields that every event carries."""
        return {
            "event_id": event_id,
            "episode_id": episode_id,
            "root_episode_id": root_of(episode_id),
            "writer_id": writer_id,
            "sequence": sequence,
            "occurred_at_ms": self._clock_ms(),
            "episode_started_at_ms": started_at_ms,
            "producer": self.settings.producer,
            "environment": self.settings.environment,
        }

    def submit(self, topic: Topic, key: str, record: Any, *, episode_id: str, urgent: bool = False) -> bool:
        """Encode and queue a record; False (and counted) where there is no room."""
        item = self._item(topic, key, record, episode_id, record.occurred_at_ms)
        self.counts.add("events_emitted")
        if self._delivery.offer(item, urgent=urgent):
            return True
        self.counts.add("events_dropped.queue_full")
        return False

    def submit_late(
        self, topic: Topic, key: str, encode: Callable[[], bytes], *, episode_id: str, size: int, at_ms: int
    ) -> bool:
        """Queue a record that is encoded in the delivery thread; False (and counted) where there is no room."""
        make = functools.partial(self._make, topic, key, encode, at_ms)
        self.counts.add("events_emitted")
        if self._delivery.offer(Item(episode_id, make, size)):
            return True
        self.counts.add("events_dropped.queue_full")
        return False

    def purge(self, episode_id: str) -> int:
        """Drop an episode's queued events and return how many there were."""
        purged = self._delivery.purge(episode_id)
        if purged:
            self.counts.add("events_dropped.queue_full", purged)
        return purged

    def send_reward(
        self, episode_id: str, alias: str | None, fields: Mapping[str, Any], key: str | None, started_at_ms: int
    ) -> str | None:
        """Write a reward whose id comes from the caller's key (or is new without one)."""
        target = alias if alias is not None else episode_id
        event_id = ids.reward_event_id(target, str(fields["name"]), self._new_id() if key is None else str(key))
        envelope = self.envelope(
            event_id=event_id,
            episode_id=episode_id,
            writer_id=self.writer_id,
            sequence=KEYED,
            started_at_ms=started_at_ms,
        )
        topic, record = (
            (ALIASES if alias is not None else EPISODE_EVENTS),
            RewardReported(**envelope, alias=alias, **fields),
        )
        kafka_key = alias if alias is not None else root_of(episode_id)
        return event_id if self.submit(topic, kafka_key, record, episode_id="") else None

    def _start(
        self,
        task: str,
        episode_id: str | None,
        parent: Episode | None,
        fields: Mapping[str, Any],
        traceparent: str | None,
    ) -> Episode:
        parent = parent or self.current_episode()
        if episode_id is None:
            episode_id = self._new_id() if parent is None else f"{parent.root_id}{CHILD_SEPARATOR}{self._new_id()}"
        sampled = self.settings.enabled and (
            parent.sampled
            if parent is not None
            else is_sampled(fields["group_id"] or episode_id, self.settings.sample_rate)
        )
        episode = Episode(
            self,
            episode_id,
            task=task or (parent.task if parent else ""),
            writer_id=self.writer_id,
            started_at_ms=self._clock_ms(),
            sampled=sampled,
            parent=parent,
        )
        given = tracing.checked(traceparent) or (parent.traceparent if parent else None)
        episode.traceparent = given or self.guard.call("trace", tracing.current_traceparent, default=None)
        self.counts.add("episodes_started" if sampled else "episodes_not_sampled")
        if not sampled:
            self._remember_unsampled(episode_id)
            return episode
        self._live.add(episode)
        episode.begin(fields)
        return episode

    def _attach(self, origin: str | Mapping[str, str]) -> Episode | None:
        started_at_ms = 0
        if isinstance(origin, str):
            episode_id = origin
        else:
            headers = {str(name).lower(): value for name, value in origin.items()}
            if "rollbus-episode" not in headers:
                return None
            episode_id = headers["rollbus-episode"]
            started = headers.get("rollbus-started", "")
            started_at_ms = int(started) if started.isdecimal() else 0
        episode = self.join(episode_id, started_at_ms)
        if not isinstance(origin, str):
            episode.function = unquote(headers.get("rollbus-function", ""))
            episode.traceparent = tracing.checked(headers.get(tracing.TRACEPARENT))
        return episode

    def join(self, episode_id: str, started_at_ms: int) -> Episode:
        """Return another writer of an episode; an episode of this process will name it when it ends."""
        writer_id = self._new_id()
        for known in tuple(self._live):
            if known.id == episode_id:
                known.joined_by(writer_id)
        episode = Episode(
            self,
            episode_id,
            writer_id=writer_id,
            started_at_ms=started_at_ms,
            sampled=self.settings.enabled and episode_id not in self._unsampled,
            owner=False,
        )
        self._live.add(episode)
        return episode

    def _silent(self, episode_id: str | None) -> Episode:
        """Return a handle that records nothing: what the host gets where opening an episode failed."""
        return Episode(self, episode_id or str(uuid.uuid4()), writer_id=self.writer_id, started_at_ms=0, sampled=False)

    def _handle(self, episode: Episode | str) -> Episode:
        if isinstance(episode, Episode):
            return episode
        sampled = self.settings.enabled and episode not in self._unsampled
        return Episode(self, episode, writer_id=self.writer_id, started_at_ms=0, sampled=sampled, owner=False)

    def _feedback(
        self,
        target: str | Episode | None,
        alias: str | None,
        fields: dict[str, Any],
        key: str | None,
        comment: str | None,
    ) -> str | None:
        episode_id, started_at_ms = "", 0
        if isinstance(target, Episode):
            if not target.sampled:
                return None
            episode_id, started_at_ms = target.id, target.started_at_ms
        elif target is not None and (_is_id(target) or any(known.id == target for known in tuple(self._live))):
            episode_id = target
        elif target is not None and alias is None:
            alias = target
        if not self.settings.enabled or episode_id in self._unsampled:
            return None
        fields |= {"value": number(fields["value"]), "comment": Redactor(self.privacy).text(comment, "comments")}
        return self.send_reward(episode_id, alias, fields, key, started_at_ms)

    def _remember_unsampled(self, episode_id: str) -> None:
        self._unsampled[episode_id] = None
        while len(self._unsampled) > MAX_UNSAMPLED_IDS:
            self._unsampled.popitem(last=False)

    def _report_item(self) -> Item | None:
        now_ms = self._clock_ms()
        report = ProducerReport(
            producer=self.settings.producer or f"pid-{os.getpid()}",
            writer_id=self.writer_id,
            counters={**self.counters},
            reported_at_ms=now_ms,
        )
        return self.guard.call(
            "report", self._item, PRODUCER_REPORTS, report.producer, report, "", now_ms, default=None
        )

    def _make(self, topic: Topic, key: str, encode: Callable[[], bytes], at_ms: int) -> tuple[Outbound, ...]:
        return self.guard.call("record", lambda: self._frames(topic, key, encode(), at_ms), default=())

    def _frames(self, topic: Topic, key: str, data: bytes, at_ms: int) -> tuple[Outbound, ...]:
        name, key_bytes = topic.full_name(self.settings.namespace), key.encode()
        return tuple(Outbound(name, key_bytes, part, at_ms) for part in chunks.split(data))

    def _item(self, topic: Topic, key: str, record: Any, episode_id: str, at_ms: int) -> Item:
        frames = self._frames(topic, key, codec.encode(record), at_ms)
        return Item(episode_id, None, sum(len(frame.key) + len(frame.value) for frame in frames), made=frames)


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(root_of(text))
    except ValueError:
        return False
    return True
