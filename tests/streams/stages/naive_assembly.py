"""Assembly once more, naively: every event kept, everything computed again at every record."""

from dataclasses import replace
from typing import Any

from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Excluded,
    RewardReported,
    TurnRecorded,
    WriterClosed,
)

Telling = tuple[Any, ...]


class NaiveAssembly:
    """One partition; `feed` returns what must come out, in words."""

    def __init__(self, config: AssemblyConfig) -> None:
        self.config = config
        self.now: Any = None
        self.episodes: dict[str, dict[str, Any]] = {}
        self.tick_number = -1

    def feed(self, record: Any) -> list[Telling]:
        return self._tick(record) if isinstance(record, Tick) else self._event(record)

    def _event(self, event: Any) -> list[Telling]:
        episode = self.episodes.setdefault(
            event.episode_id,
            {
                "events": [],
                "at": [],
                "closed": None,
                "refused": [],
                "out": False,
                "revision": 0,
                "excluded": False,
                "considered": -1,
                "waiting": False,
                "last": (),
            },
        )
        for known_event in episode["events"]:
            if known_event.event_id == event.event_id:
                same = known_event == event or (event.sequence < 0 and _content_of(known_event) == _content_of(event))
                return [] if same else self._refuse(episode, event, "duplicate_conflict")
        if episode["excluded"]:
            return self._refuse(episode, event, "excluded")
        if episode["closed"] is not None:
            return self._after(episode, event)
        episode["events"].append(event)
        episode["at"].append(self.now)
        if isinstance(event, Excluded):
            episode["excluded"], episode["closed"] = True, (self.now,)
            return [("drop", "excluded", event.episode_id)]
        return self._close(event.episode_id) if self._complete(episode["events"]) else []

    def _after(self, episode: dict[str, Any], event: Any) -> list[Telling]:
        if not isinstance(event, RewardReported | Excluded):
            return self._refuse(episode, event, "late_event")
        if isinstance(event, RewardReported) and not episode["out"]:
            return self._refuse(episode, event, "orphaned_reward")
        may_consider = episode["considered"] < 0 or (self.now or 0) > self._considered_until(episode)
        episode["events"].append(event)
        episode["excluded"] |= isinstance(event, Excluded)
        if not episode["excluded"] and not may_consider:
            episode["waiting"] = True
            return []
        return self._consider(event.episode_id)

    def _considered_until(self, episode: dict[str, Any]) -> int:
        return int(episode["considered"]) + len(episode["events"])

    def _consider(self, name: str) -> list[Telling]:
        episode = self.episodes[name]
        episode["considered"], episode["waiting"] = self.now or 0, False
        now = self._standing(episode)
        if now == episode["last"] and not episode["excluded"]:
            return []
        episode["revision"] += 1
        episode["last"] = now
        return [("revised", name, episode["revision"], now, episode["excluded"])] if episode["out"] else []

    def _refuse(self, episode: dict[str, Any], event: Any, reason: str) -> list[Telling]:
        if event in episode["refused"]:
            return []
        episode["refused"].append(event)
        if episode["closed"] is None:
            episode["at"].append(self.now)
        return [("drop", reason, event.event_id)]

    def _tick(self, tick: Tick) -> list[Telling]:
        if tick.number <= self.tick_number:
            return []
        self.tick_number = tick.number
        if self.now is None:
            for episode in self.episodes.values():
                episode["at"] = [tick.stream_time_ms if at is None else at for at in episode["at"]]
                if episode["closed"] == (None,):
                    episode["closed"] = (tick.stream_time_ms,)
        self.now = tick.stream_time_ms
        due = sorted((self._deadline(episode), name) for name, episode in self.episodes.items())
        return [output for deadline, name in due if deadline <= self.now for output in self._due(name)]

    def _deadline(self, episode: dict[str, Any]) -> Any:
        if episode["closed"] is not None:
            forgotten = episode["closed"][0] + self.config.late_horizon_ms
            return min(forgotten, self._considered_until(episode) + 1) if episode["waiting"] else forgotten
        if all(isinstance(event, RewardReported) for event in episode["events"]):
            return min(episode["at"]) + self.config.late_horizon_ms
        deadline = max(episode["at"]) + self.config.inactivity_ms
        timed_events = list(zip(episode["events"], episode["at"], strict=False))
        if pauses := [at for event, at in timed_events if isinstance(event, WriterClosed) and event.paused]:
            deadline = max(deadline, max(pauses) + self.config.pause_ms)
        for event, at in timed_events:
            if isinstance(event, EpisodeEnded):
                deadline = min(deadline, at + min(60_000, self.config.inactivity_ms))
        return deadline

    def _due(self, name: str) -> list[Telling]:
        episode = self.episodes[name]
        if episode["closed"] is not None:
            outputs = self._consider(name) if episode["waiting"] else []
            if episode["closed"][0] + self.config.late_horizon_ms <= self.now:
                del self.episodes[name]
            return outputs
        if all(isinstance(event, RewardReported) for event in episode["events"]):
            episode["closed"] = (self.now,)
            return [
                ("drop", "orphaned_reward", event_id)
                for event_id in sorted(event.event_id for event in episode["events"])
            ]
        return self._close(name)

    def _close(self, name: str) -> list[Telling]:
        episode = self.episodes[name]
        episode["closed"] = (self.now,)
        events, outputs = episode["events"], []
        has_start = any(isinstance(event, EpisodeStarted) for event in events)
        if not has_start or self._holes(events):
            outputs.append(("drop", "missing_events", name))
        if not has_start:
            orphans = sorted(event.event_id for event in events if isinstance(event, RewardReported))
            return outputs + [("drop", "orphaned_reward", orphan) for orphan in orphans]
        episode["out"], episode["last"] = True, self._standing(episode)
        turns = {event.event_id for event in events if isinstance(event, TurnRecorded)}
        trainable = bool(turns) and not self._holes(events)
        return [*outputs, ("trajectory", name, trainable, len(turns), self._standing(episode))]

    def _complete(self, events: list[Any]) -> bool:
        return any(isinstance(event, EpisodeEnded) for event in events) and not self._holes(events)

    def _holes(self, events: list[Any]) -> bool:
        ended = [event for event in events if isinstance(event, EpisodeEnded)]
        for writer in {event.writer_id for event in events if event.sequence >= 0} | {
            writer for event in ended for writer in event.writer_ids
        }:
            sent = [event for event in events if event.writer_id == writer and event.sequence >= 0]
            counts = [event.count for event in sent if isinstance(event, WriterClosed)]
            total = counts[0] if counts else 1 + max((event.sequence for event in sent), default=-1)
            if not set(range(total)) <= {event.sequence for event in sent}:
                return True
            part = any(not isinstance(event, RewardReported | Excluded) for event in sent)
            named = any(writer in event.writer_ids for event in ended)
            if ended and not counts and (part or named):
                return True
        return False

    def _standing(self, episode: dict[str, Any]) -> Telling:
        reports = [event for event in episode["events"] if isinstance(event, RewardReported)]
        gone = {report.supersedes for report in reports}
        standing_reports = [report for report in reports if report.event_id not in gone and not report.retracted]
        return tuple((report.event_id, report.value) for report in standing_reports)


def _content_of(event: Any) -> Any:
    """An event under the caller's key without who sent it and when."""
    left_out = {"root_episode_id": "", "writer_id": "", "producer": "", "environment": ""}
    return replace(event, occurred_at_ms=0, episode_started_at_ms=0, **left_out)
