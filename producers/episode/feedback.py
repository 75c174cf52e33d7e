"""`Recorder.feedback`: which episode a reward is for, said by handle, id or alias, or by the running code."""

import uuid
from collections.abc import Mapping
from typing import Any

from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.open_episodes import OpenEpisodes
from rollbus.producers.episode.outbox import Outbox, root_of
from rollbus.producers.episode.rewards import nonempty_text, require_signal, reward_value, send_reward


def report_reward(
    outbox: Outbox,
    episodes: OpenEpisodes,
    target: str | Episode | None,
    episode: str | Episode | None,
    alias: str | None,
    fields: Mapping[str, Any],
    key: str | None,
    comment: str | None,
) -> str | None:
    """Find out what is meant by the target and write the reward; None where it is not recorded."""
    if target is None and episode is None and alias is None:
        episode = episodes.current()
        if episode is None:
            outbox.counts.add("calls_outside_episode")
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
        episode_id, started_at_ms = nonempty_text(episode) if episode is not None else "", 0
    if not episodes.is_sampled(episode_id):
        return None
    require_signal(fields)
    comment = outbox.redacted(comment, "comments")
    fields = {**fields, "value": reward_value(fields["value"]), "comment": comment}
    return send_reward(outbox, episode_id, alias, fields, key, started_at_ms)


def _is_id(text: str) -> bool:
    """Say whether this has the form of the ids made here; hexadecimal digits alone may be a trace's or an order's."""
    root = root_of(text)
    try:
        return str(uuid.UUID(root)) == root.lower()
    except ValueError:
        return False
