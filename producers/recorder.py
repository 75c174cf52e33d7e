"""The recorder: what `rollbus.init` returns, and the wiring of the producer.

    call of the wrapped client ─capture▶ Exchange ─episode▶ its turns' places ─outbox▶ Item ─delivery▶ queue
    delivery thread (courier): Item ─late_turns, turn_record▶ event ─codec▶ frame ─▶ EventSink

Nothing here raises into the host, blocks it, or keeps more than the queue's bounds; what is lost is counted in
`counters`.
"""

import functools
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, Unpack, overload

from rollbus.producers.episode import context, feedback, functions
from rollbus.producers.episode.episode import Episode, ToolFields
from rollbus.producers.episode.open_episodes import OpenEpisodes
from rollbus.producers.episode.outbox import Outbox
from rollbus.producers.episode.scope import EpisodeScope
from rollbus.producers.episode.settings import RecorderSettings
from rollbus.producers.sending import process_hooks
from rollbus.producers.sending.counters import Counters, prometheus_text
from rollbus.producers.sending.sink import EventSink
from rollbus.schemas.records.events import Signal
from rollbus.schemas.wall_clock import wall_clock_ms

Client = TypeVar("Client")
Function = TypeVar("Function", bound=Callable[..., Any])
SYNC_FLUSH_S = 5.0
"""How long a `sync` episode may hold its caller back while the broker is away."""


class EpisodeFields(TypedDict, total=False):
    """What `Recorder.episode` hands on to `Recorder.start`, in addition to the task."""

    example_id: str | None
    group_id: str | None
    group_size: int | None
    agent: str | None
    labels: Mapping[str, str] | None
    episode_id: str | None
    parent: Episode | None
    resampled: bool
    traceparent: str | None
    conversation: str | None
    message: str | None


class WrapOptions(TypedDict, total=False):
    """What frameworks' models hand on to `Recorder.wrap`."""

    episode: Episode | None
    function: str | Callable[[], str] | None
    logprobs: str | None
    hide_injected: bool


class Recorder:
    """Records episodes and sends them."""

    def __init__(
        self,
        settings: RecorderSettings,
        make_sink: Callable[[], EventSink],
        *,
        counters: Counters | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """Record under these settings into the sink that `make_sink` makes; the sink is not asked before the first
        event.
        """
        self.settings = settings
        self.counts = counters or Counters()
        self.outbox = Outbox(settings, make_sink, self.counts, clock_ms, new_id)
        self.guard, self._delivery = self.outbox.guard, self.outbox.delivery
        self.episodes = OpenEpisodes(self.outbox)
        self.bind, self.function = context.bind, functions.function
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
        conversation: str | None = None,
        message: str | None = None,
        sync: bool = False,
    ) -> EpisodeScope: ...
    def episode(
        self,
        function: Any = None,
        /,
        *,
        task: str | None = None,
        sync: bool = False,
        **fields: Unpack[EpisodeFields],
    ) -> Any:
        """Return a block (`with`, `async with`) or decorator that is one run of the agent on one task.

        Inside another episode it is a child of it, unless `parent` names another. `sync` waits on leaving, for some
        seconds at most, until its events are out: for functions whose process may be frozen once they return.
        """
        after = functools.partial(self.flush, SYNC_FLUSH_S) if sync else None
        scope = EpisodeScope(lambda name: self.start(task=task or name or "", **fields), after)
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
        conversation: str | None = None,
        message: str | None = None,
    ) -> Episode:
        """Open an episode without making it the current one; the caller calls its `end`.

        `traceparent` is the trace it belongs to; by default the parent's, else that of OpenTelemetry's current span.
        `conversation` links it to the user's earlier episodes: what the user says to this one is their reply to the one
        before. That is `message`, or else the last message of the user in the first call. An empty id is none.
        """
        fields = {
            "conversation": conversation,
            "message": message,
            "example_id": example_id,
            "group_id": group_id,
            "group_size": group_size,
            "agent": agent if agent is not None else self.settings.agent,
            "labels": labels,
            "resampled": resampled,
        }
        episode_opened = self.guard.call(
            "start", self.episodes.open, task, episode_id, parent, fields, traceparent, default=None
        )
        return episode_opened or self.episodes.silent(episode_id)

    def attach(self, origin: str | Mapping[str, str]) -> EpisodeScope:
        """Return a block that goes on with an episode of another process: its id, or the headers that it sent.

        The episode stays the other process's to end; here only this writer's part is closed. Headers that name none
        change nothing.
        """
        return EpisodeScope(
            lambda _: (
                self.guard.call("attach", self.episodes.attach, origin, default=None) or self.episodes.silent(None)
            )
        )

    def pause(self, name: str, episode: Episode | None = None) -> None:
        """Leave an episode (the current one) open without an end, such as where a person is asked.

        `resume` with the same name goes on with it, hours later and in any process. The name is one's own, such as a
        thread's id; of several episodes that pause under it, the last one is resumed.
        """
        if (episode := episode or self.current_episode()) is not None:
            self.guard.call("pause", self.episodes.pause, name, episode, default=None)

    def resume(self, name: str, *, task: str = "") -> EpisodeScope:
        """Return a block that goes on with a paused episode, and ends it; `task` is of the sub-agents in it."""
        return EpisodeScope(lambda _: self.start_resumed(name, task=task))

    def start_resumed(self, name: str, *, task: str = "") -> Episode:
        """Go on with a paused episode without making it the current one; the caller calls its `end`."""
        return self.guard.call("resume", self.episodes.resume, name, task, default=None) or self.episodes.silent(None)

    def headers(self, episode: Episode | None = None) -> dict[str, str]:
        """Return the headers that carry an episode (the current one) to another process; none outside of one."""
        episode = episode or self.current_episode()
        return episode.headers() if episode is not None and not episode.ended else {}

    def current_episode(self) -> Episode | None:
        """Return the innermost episode of the running code, of this recorder."""
        return self.episodes.current()

    @property
    def writer_id(self) -> str:
        """The writer that this process is, new per start and fork."""
        return self.outbox.writer_id

    # Clients, feedback, tools

    def wrap(
        self,
        client: Client,
        *,
        episode: Episode | None = None,
        function: str | Callable[[], str] | None = None,
        logprobs: str | None = None,
        hide_injected: bool = True,
    ) -> Client:
        """Return a client of the same type, on the same connections, whose calls are recorded.

        Calls belong to `episode`, else to the current one; outside of any they pass untouched. `function` names the
        function they are made in, or returns its name at each call. `logprobs` overrides the recorder's mode.
        """
        if not self.settings.enabled:
            return client
        from rollbus.producers.capture.call import Capture
        from rollbus.producers.capture.openai_client import wrap_client

        options = (episode, function, logprobs or self.settings.logprobs, hide_injected)
        capture = Capture(self.outbox, self.episodes, *options)
        return self.guard.call("wrap", wrap_client, client, capture, default=client)

    def feedback(
        self,
        target: str | Episode | None = None,
        *,
        episode: str | Episode | None = None,
        reward: float | None = None,
        name: str = "reward",
        key: str | None = None,
        source: str = "user",
        alias: str | None = None,
        turn: str | None = None,
        supersedes: str | None = None,
        retracted: bool = False,
        comment: str | None = None,
        conversation: str | None = None,
        signal: Signal = "",
    ) -> str | None:
        """Report what an episode was worth, from any process, before, during or long after it; return the event's id.

        `target` is an episode or its id; any other text is taken as an alias. An id of your own making goes to
        `episode`, an alias that looks like an id to `alias`; `conversation` means its last episode. Two of them are
        refused; without any the current episode is meant. The same `key` again is the same report. In place of a reward
        `signal` says what the user did next (`reply`, `retry`, `edit`, `escalation`), with their words as the comment;
        words alone are a `reply`.
        """
        targets = {"target": target, "episode": episode, "alias": alias, "conversation": conversation}
        fields = {
            "name": name,
            "signal": signal,
            "value": reward,
            "source": source,
            "turn_event_id": turn,
            "supersedes": supersedes,
            "retracted": retracted,
        }
        args = (self.outbox, self.episodes, targets, fields, key, comment)
        return self.guard.call("feedback", feedback.report_reward, *args, default=None)

    def alias(self, episode: Episode | str, alias: str) -> None:
        """Let feedback find an episode by another name, such as an order number."""
        self.guard.call("alias", lambda: self.episodes.handle(episode).alias(alias), default=None)

    def tool(
        self,
        name: str,
        *,
        episode: Episode | None = None,
        arguments: Any = "",
        result: Any = None,
        error: str | None = None,
        tool_call_id: str | None = None,
        latency_ms: int | None = None,
    ) -> str | None:
        """Record a tool call of an episode (the current one); see `Episode.tool`."""
        episode = episode or self.current_episode()
        if episode is None:
            self.outbox.count_call_outside()
            return None
        fields: ToolFields = {
            "arguments": arguments,
            "result": result,
            "error": error,
            "tool_call_id": tool_call_id,
            "latency_ms": latency_ms,
        }
        return self.guard.call("tool", lambda: episode.tool(name, **fields), default=None)

    # Running

    @property
    def counters(self) -> Mapping[str, int]:
        """Return what was recorded, delivered and lost so far."""
        return self.outbox.counters

    def metrics(self) -> str:
        """Return the same as Prometheus' text format, for the host to serve."""
        counters = {**self.counters, "bytes_queued": self.bytes_queued}
        return prometheus_text(counters, healthy=self.healthy, producer=self.settings.producer)

    @property
    def bytes_queued(self) -> int:
        """What waits to be delivered."""
        return self._delivery.pending_bytes

    @property
    def healthy(self) -> bool | None:
        """Whether the sink took the last events, and not only its spool; None before the first."""
        return self._delivery.healthy

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all events are acknowledged; False where that took longer (then they go on being sent)."""
        return self.guard.call("flush", self._delivery.flush, timeout, default=False)

    def close(self, timeout: float = 10.0) -> bool:
        """Send the last counters, flush and stop; later events are counted as dropped. Returns whether all is out."""
        return self.guard.call("close", self._close, timeout, default=False)

    def leave(self) -> None:
        """Close this process's part of the episodes that other processes end; `close` does so too."""
        self.guard.call("leave", self.episodes.close_joined, default=None)

    def _close(self, timeout_s: float) -> bool:
        process_hooks.unregister(self)
        self.episodes.close_joined()
        if self.counts.get("events_emitted"):
            self.outbox.submit_report()
        is_sent = self._delivery.close(timeout_s)
        self.outbox.first_turns.close()
        return is_sent

    def after_fork(self) -> None:
        """Become a writer of its own in a child process."""
        self.outbox.after_fork()
        self.episodes.after_fork()
