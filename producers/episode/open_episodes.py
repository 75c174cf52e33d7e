"""The episodes of one recorder in this process: opened here, or joined from another.

Keeps handles only weakly; an episode that the host forgets is no longer known here. Which episodes were not sampled is
remembered, so that their feedback is not sent either; and which ids the host has given, since each is of one episode.
"""

import logging
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from rollbus.producers.episode import context, tracing
from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.headers import EPISODE_HEADER, FUNCTION_HEADER, STARTED_HEADER, is_unsampled
from rollbus.producers.episode.outbox import CHILD_SEPARATOR, Outbox
from rollbus.producers.episode.rewards import hosts_name, nonempty_text
from rollbus.producers.episode.sampling import is_sampled
from rollbus.producers.turns.answer import text_of
from rollbus.schemas.ids import PAUSE_PREFIX, pause_name

logger = logging.getLogger(__name__)
MAX_IDS = 10_000
"""How many ids of each kind are remembered; the oldest are forgotten first."""
TIME_DIGITS = 15
"""Of a time in milliseconds; a longer number in a header is none, and no record could hold it."""


class Spans(Protocol):
    """What a tracing library knows of the running code."""

    def current_run(self) -> Episode | None:
        """Return the innermost episode that is the run of an agent here; raises nothing."""

    def mark_captured(self) -> None:
        """Take note that a client's call here is recorded, with its tokens."""

    def after_fork(self) -> None:
        """Go on in a child process."""


class OpenEpisodes:
    """Opens, joins and remembers episodes."""

    def __init__(self, outbox: Outbox) -> None:
        """Begin without episodes."""
        self._outbox, self._new_id = outbox, outbox.new_id
        self._live: weakref.WeakSet[Episode] = weakref.WeakSet()
        self._lock = threading.RLock()
        """Guards `_live`: a set cannot be iterated while another thread adds to it."""
        self._unsampled: OrderedDict[str, None] = OrderedDict()
        self._given: OrderedDict[str, None] = OrderedDict()
        """Ids of the host's own."""
        self._paused: OrderedDict[str, Episode] = OrderedDict()
        self._warned = set[str]()
        self.of_process: Episode | None = None
        """The episode of the whole process: current where the running code is in no other."""
        self.spans: Spans | None = None
        self.gives_way = False
        """Whether a call that another recorder of the process records is left to it."""
        self.task_of_calls: str | None = None
        """The task of calls outside every episode, each recorded as its own episode; None if they are not recorded."""

    def current(self) -> Episode | None:
        """Return the innermost episode of the running code, of this recorder."""
        episode = context.current_episode()
        while episode is not None and (episode.outbox is not self._outbox or episode.is_placeholder):
            episode = episode.parent
        run = None if self.spans is None else self.spans.current_run()
        if run is not None and (episode is None or episode in run.ancestry()):
            return run  # an agent's, within the block around it
        return episode or self.of_process

    def open_for_call(self) -> Episode | None:
        """Return a new episode for a single call, which ends it; None where such calls are not recorded."""
        if self.task_of_calls is None:
            return None
        fields = {"example_id": None, "group_id": None, "agent": self._outbox.settings.agent}
        episode = self.open(self.task_of_calls, None, None, fields, None)
        episode.is_of_one_call = True
        return episode

    def open(
        self,
        task: str,
        episode_id: str | None,
        parent: Episode | None,
        fields: Mapping[str, Any],
        traceparent: str | None,
    ) -> Episode:
        """Open an episode, a child of `parent` or of the current one, and write its start; an empty id is none."""
        outbox = self._outbox
        task, episode_id = _name_of(task) or "", _name_of(episode_id)
        names = {name: _name_of(fields.get(name)) for name in ("example_id", "group_id", "conversation")}
        fields = {**fields, **names, "agent": _name_of(fields["agent"]) or ""}
        if episode_id is not None:
            episode_id = hosts_name(episode_id, PAUSE_PREFIX)
        parent, is_given = parent or self.current(), episode_id is not None
        if parent is not None and episode_id is not None:
            self._warn_of_own_id(episode_id, parent)
        if episode_id is None:
            episode_id = self._new_id() if parent is None else f"{parent.root_id}{CHILD_SEPARATOR}{self._new_id()}"
        sampled = outbox.settings.enabled and (
            parent.sampled
            if parent is not None
            else is_sampled(fields["group_id"] or episode_id, outbox.settings.sample_rate)
        )
        episode = Episode(
            outbox,
            episode_id,
            task=task or (parent.task if parent else ""),
            writer_id=outbox.writer_id,
            started_at_ms=outbox.clock_ms(),
            sampled=sampled,
            parent=parent,
        )
        known_trace = tracing.valid_traceparent(traceparent) or (parent.traceparent if parent else None)
        episode.traceparent = known_trace or outbox.guard.call("trace", tracing.current_traceparent, default=None)
        outbox.counts.add("episodes_started" if sampled else "episodes_not_sampled")
        if not sampled:
            _remember(self._unsampled, episode_id)
            return episode
        if is_given:
            self._note_given_id(episode_id)
        self._know(episode)
        episode.begin(fields)
        return episode

    def attach(self, origin: str | Mapping[str, str]) -> Episode:
        """Join an episode of another process, by its id or by the headers it sent, which are percent-encoded.

        If the headers name no episode, the handle records nothing. It hides the episode around it only if the headers
        say that theirs is not recorded.
        """
        if not isinstance(origin, Mapping):
            return self.join(nonempty_text(origin), 0)
        headers = {str(name).lower(): value for name, value in origin.items()}
        if not headers.get(EPISODE_HEADER):
            silent = self.silent(None)
            silent.parent, silent.is_placeholder = self.current(), not is_unsampled(headers)
            return silent
        started_at = headers.get(STARTED_HEADER, "")
        is_time = started_at.isdecimal() and len(started_at) <= TIME_DIGITS
        episode = self.join(unquote(headers[EPISODE_HEADER]), int(started_at) if is_time else 0)
        episode.function = unquote(headers.get(FUNCTION_HEADER, ""))
        episode.traceparent = tracing.valid_traceparent(headers.get(tracing.TRACEPARENT))
        return episode

    def join(self, episode_id: str, started_at_ms: int) -> Episode:
        """Return another writer of an episode; an episode of this process will name it when it ends."""
        writer_id = self._new_id()
        for open_episode in self:
            if open_episode.id == episode_id:
                open_episode.add_writer(writer_id)
        episode = self._part_of(episode_id, writer_id, started_at_ms)
        self._know(episode)
        return episode

    def pause(self, name: str, episode: Episode) -> None:
        """Pause an episode, and remember it under this name here."""
        self._paused[pause_name(name)] = episode
        while len(self._paused) > MAX_IDS:
            self._paused.popitem(last=False)
        episode.pause(name)

    def resume(self, name: str, task: str) -> Episode:
        """Go on with the episode that was paused last under this name, as a writer that may end it.

        If another process has paused it, the log finds the episode by the name.
        """
        alias = pause_name(nonempty_text(name))
        paused = self._paused.pop(alias, None)
        episode = self._part_of(alias if paused is None else paused.id, self._new_id(), 0)
        episode.owner, episode.task = True, task
        if paused is not None:
            episode.take_over(paused)
        self._know(episode)
        self._outbox.counts.add("episodes_resumed")
        return episode

    def handle(self, episode: Episode | str) -> Episode:
        """Return the episode, or for an id a handle that says something about it without being a part of it."""
        return (
            episode
            if isinstance(episode, Episode)
            else self._part_of(nonempty_text(episode), self._outbox.writer_id, 0)
        )

    def silent(self, episode_id: object) -> Episode:
        """Return a handle that records nothing: what the host gets where opening an episode failed."""
        writer_id = self._outbox.writer_id
        silent_id = episode_id if isinstance(episode_id, str) and episode_id else str(uuid.uuid4())
        return Episode(self._outbox, silent_id, writer_id=writer_id, started_at_ms=0, sampled=False)

    def is_sampled(self, episode_id: str) -> bool:
        """Say whether what concerns this episode is recorded, as far as is known here."""
        return self._outbox.settings.enabled and episode_id not in self._unsampled

    def knows(self, episode_id: str) -> bool:
        """Say whether an episode of this id is open in this process."""
        return any(episode.id == episode_id for episode in self)

    def close_joined(self) -> None:
        """Close this process's parts of the episodes that others end, and its episodes of a single call."""
        for episode in self:
            if not episode.owner or episode.is_of_one_call:
                episode.end()

    def after_fork(self) -> None:
        """Go on in a child process under writers of its own; the lock may be held by a thread that is not here."""
        self._lock = threading.RLock()
        if self.spans is not None:
            self.spans.after_fork()
        for episode in self:
            episode.after_fork(self._new_id())

    def __iter__(self) -> Iterator[Episode]:
        """Iterate over the episodes known now."""
        with self._lock:
            return iter(tuple(self._live))

    def _know(self, episode: Episode) -> None:
        with self._lock:
            self._live.add(episode)

    def _warn_of_own_id(self, episode_id: str, parent: Episode) -> None:
        """Warn that this child cannot be found by its root: only ids made here begin with the root's id."""
        self._warn_once(
            "rollbus: episode %s has an id of its own inside %s: rewards that are passed down and `rollbus forget` "
            "do not reach it by its root; leave `episode_id` out, and name it by rb.alias(…)",
            episode_id,
            parent.id,
        )

    def _note_given_id(self, episode_id: str) -> None:
        """Remember an id that the host gave; warn if an earlier episode has it: their events cannot be told apart."""
        if episode_id in self._given:
            self._outbox.counts.add("episode_ids_used_again")
            self._warn_once(
                "rollbus: episode_id %s was given to an earlier episode, too: what this one says is dropped as "
                "`duplicate_conflict` or `late_event`; give each episode an id of its own, or leave `episode_id` out",
                episode_id,
            )
        _remember(self._given, episode_id)

    def _warn_once(self, line: str, *values: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            logger.warning(line, *values)

    def _part_of(self, episode_id: str, writer_id: str, started_at_ms: int) -> Episode:
        return Episode(
            self._outbox,
            episode_id,
            writer_id=writer_id,
            started_at_ms=started_at_ms,
            sampled=self.is_sampled(episode_id),
            owner=False,
        )


def _name_of(value: Any) -> str | None:
    """Return an id or a name as text; None for an empty one, which names nothing."""
    return None if value is None else text_of(str(value)) or None


def _remember(ids: OrderedDict[str, None], episode_id: str) -> None:
    ids[episode_id] = None
    while len(ids) > MAX_IDS:
        ids.popitem(last=False)
