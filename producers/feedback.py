"""Rewards that are not part of an episode's own sequence: under the caller's key, by alias, or after the end.

Their id comes from target, name and key, so the same report sent twice, from any process, is one event.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rollbus.producers.episode import KEYED, Episode, carried, named, number
from rollbus.producers.outbox import root_of
from rollbus.schemas import ids
from rollbus.schemas.events import RewardReported
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS

if TYPE_CHECKING:
    from rollbus.producers.recorder import Recorder


class Feedback:
    """Writes the rewards of one recorder."""

    def __init__(self, recorder: "Recorder", new_id: Callable[[], str]) -> None:
        """Write through this recorder."""
        self._recorder, self._new_id = recorder, new_id

    def report(
        self,
        target: str | Episode | None,
        episode: str | Episode | None,
        alias: str | None,
        fields: Mapping[str, Any],
        key: str | None,
        comment: str | None,
    ) -> str | None:
        """Find out what is meant by the target and write the reward; None where it is not recorded."""
        recorder, episodes = self._recorder, self._recorder.episodes
        if target is None and episode is None and alias is None:
            episode = recorder.current_episode()
            if episode is None:
                recorder.counts.add("calls_outside_episode")
                return None
        elif target is not None and (isinstance(target, Episode) or _is_id(str(target)) or episodes.knows(str(target))):
            episode = target
        elif target is not None and alias is None:
            alias = str(target)
        if isinstance(episode, Episode):
            if not episode.sampled:
                return None
            episode_id, started_at_ms = episode.id, episode.started_at_ms
        else:
            episode_id, started_at_ms = named(episode) if episode is not None else "", 0
        if not episodes.is_sampled(episode_id):
            return None
        comment = recorder.redacted(comment, "comments")
        fields = {**fields, "value": number(fields["value"]), "comment": comment}
        return self.send(episode_id, alias, fields, key, started_at_ms)

    def send(
        self, episode_id: str, alias: str | None, fields: Mapping[str, Any], key: str | None, started_at_ms: int
    ) -> str | None:
        """Write a reward whose id comes from the caller's key (or is new without one)."""
        alias, fields = None if alias is None else named(alias), carried(fields)
        target = alias if alias is not None else episode_id
        event_id = ids.reward_event_id(target, str(fields["name"]), self._new_id() if key is None else str(key))
        outbox = self._recorder.outbox
        envelope = outbox.envelope(
            event_id=event_id,
            episode_id=episode_id,
            writer_id=self._recorder.writer_id,
            sequence=KEYED,
            started_at_ms=started_at_ms,
        )
        reward = RewardReported(**envelope, alias=alias, **fields)
        topic, kafka_key = (EPISODE_EVENTS, root_of(episode_id)) if alias is None else (ALIASES, alias)
        return event_id if outbox.submit(topic, kafka_key, reward, episode_id="") else None


def _is_id(text: str) -> bool:
    """Say whether this has the form of the ids made here; hexadecimal digits alone may be a trace's or an order's."""
    root = root_of(text)
    try:
        return str(uuid.UUID(root)) == root.lower()
    except ValueError:
        return False
