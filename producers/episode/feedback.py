"""`Recorder.feedback`: which episode a reward is for, said by handle, id or alias, or by the running code."""

import uuid
from collections.abc import Mapping
from typing import Any

from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.open_episodes import OpenEpisodes
from rollbus.producers.episode.outbox import Outbox, root_of
from rollbus.producers.episode.rewards import complete_report, nonempty_text, reward_value, send_reward
from rollbus.schemas.ids import conversation_name


def report_reward(
    outbox: Outbox,
    episodes: OpenEpisodes,
    targets: Mapping[str, Any],
    fields: Mapping[str, Any],
    key: str | None,
    comment: str | None,
) -> str | None:
    """Find out which episode the target means, and write the reward; None where it is not recorded.

    `targets` has the arguments that may name it, of which one or none is set.
    """
    names = [name for name, value in targets.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"feedback is about one episode, and this call has {' and '.join(names)}: give one of them")
    episode, alias = _find_addressee(episodes, targets) if names else (episodes.current(), None)
    if not names and episode is None:
        raise ValueError("feedback names no episode, and none is open here: give it an episode, its id or an alias")
    if isinstance(episode, Episode):
        if not episode.sampled:
            return None
        episode_id, started_at_ms = episode.id, episode.started_at_ms
    else:
        episode_id, started_at_ms = nonempty_text(episode) if episode is not None else "", 0
    if not episodes.is_sampled(episode_id):
        return None
    fields = complete_report(fields, comment)
    comment = outbox.redacted(comment, "comments")
    fields = {**fields, "value": reward_value(fields["value"]), "comment": comment}
    return send_reward(outbox, episode_id, alias, fields, key, started_at_ms)


def _find_addressee(episodes: OpenEpisodes, targets: Mapping[str, Any]) -> tuple[str | Episode | None, str | None]:
    """Return the episode or its id, or else an alias."""
    target, conversation = targets["target"], targets["conversation"]
    if conversation is not None:
        return None, conversation_name(nonempty_text(conversation))
    if target is None:
        return targets["episode"], targets["alias"]
    if isinstance(target, Episode) or _is_id(str(target)) or episodes.knows(str(target)):
        return target, None
    return None, str(target)


def _is_id(text: str) -> bool:
    """Say whether this has the form of the ids made here; hexadecimal digits alone may be a trace's or an order's."""
    root = root_of(text)
    try:
        return str(uuid.UUID(root)) == root.lower()
    except ValueError:
        return False
