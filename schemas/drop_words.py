"""Reason of a drop → what happened, and the one thing to do, in the same words wherever a person reads of it.

A new DropReason gets its line here; a test counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollbus.schemas.records.drops import DropReason


@dataclass(frozen=True, slots=True)
class DropWords:
    """What a reason means to a person."""

    what: str
    """Of several episodes, after their number: `are in a group …`."""
    remedy: str


_SELECT = "`rollbus sql run why-not-trained --param id=EPISODE` shows where"
WORDS: Mapping[str, DropWords] = {
    DropReason.UNTRAINABLE: DropWords("have no turn that can be trained", "see `rollbus sql run untrainable-turns`"),
    DropReason.MISSING_EVENTS: DropWords(
        "lost events on their way", "look at the agent's log, and let it end with `recorder.close()`"
    ),
    DropReason.UNFINISHED: DropWords(
        "have no end, since their agent was killed or cut off, and no reward after it",
        "let the agent end its episodes; `filter: {unfinished: all}` takes them as they are",
    ),
    DropReason.TOO_LARGE: DropWords("have a turn above the limit on records", "record smaller turns"),
    DropReason.NO_TURNS: DropWords("have no turn", "call the model inside the episode, by a client that rollbus sees"),
    DropReason.TOO_SHORT: DropWords("are below `assembly: min_episode_length`", "lower it, if they should count"),
    DropReason.NOT_TARGETED: DropWords(
        "are not of this run, by its filter or its model", "compare `runs: filter:` and `model:` with them"
    ),
    DropReason.EXCLUDED: DropWords("were excluded from training", "nothing, if you meant it"),
    DropReason.SCORE_MISSING: DropWords(
        "had no reward when they were to be grouped", "report one: `rb.feedback(EPISODE, reward=…)`"
    ),
    DropReason.SCORE_FAILED: DropWords(
        "have a reward function that failed", "`rollbus sql run drops-by-reason` has its error"
    ),
    DropReason.ORPHANED_REWARD: DropWords("have a reward of an unknown episode", _SELECT),
    DropReason.UNRESOLVED_ALIAS: DropWords("have a reward under an unknown alias", "declare the alias first"),
    DropReason.REWARD_NOT_ALLOWED: DropWords(
        "have a reward of a source that may not set it", "see `assembly: reward_sources:`"
    ),
    DropReason.TOO_MANY_REPORTS: DropWords(
        "have more reports by one principal than `assembly: max_reports:`", "raise it, if they are meant"
    ),
    DropReason.OVERLONG: DropWords("are longer than `grouping: max_history_tokens`", "raise it, if memory allows"),
    DropReason.INCOMPLETE_GROUP: DropWords(
        "waited for members of their group that never came", "attempt each example several times"
    ),
    DropReason.GROUP_CLOSED: DropWords(
        "came, or got another reward, after their group had closed",
        "set `grouping: reward_grace_ms`, for which a score waits, or raise `window_ms`",
    ),
    DropReason.GROUP_MISMATCH: DropWords(
        "have another prompt, model or reward than others of their group",
        "`rollbus sql run why-not-trained --param id=EPISODE` says which (docs/grouping.md)",
    ),
    DropReason.DUPLICATE_CONFLICT: DropWords("have two different events under one id", _SELECT),
    DropReason.LATE_EVENT: DropWords("have events that came after their end", "end the episode last"),
    DropReason.NO_SIGNAL: DropWords(
        "are in a group whose rewards are all equal", "see `rollbus sql run groups-without-signal`"
    ),
    DropReason.CURRICULUM: DropWords("were not chosen by the curriculum", "see `runs: curriculum:`"),
    DropReason.SUPERSEDED: DropWords(
        "waited while newer groups came", "train faster, or raise `batching: max_waiting_groups`"
    ),
    DropReason.STALE: DropWords("are older than `batching: max_off_policy_steps`", "train faster, or raise it"),
    DropReason.OFF_LINEAGE: DropWords(
        "were sampled by weights that the run does not continue", "let the agent ask for the served version"
    ),
    DropReason.TEMPERATURE: DropWords("were sampled at another temperature", "ask at temperature 1"),
    DropReason.SAMPLING: DropWords(
        "were sampled with top_p, top_k, min_p or a penalty", "ask without them, or serve processed log-probs"
    ),
    DropReason.PAYLOAD_LOST: DropWords("are no longer in the log", "raise `worker: retention_hours:`"),
    DropReason.REJECTED_BY_BACKEND: DropWords("were refused by the backend", "`rollbus trainer steps` has its message"),
    DropReason.SOURCE_SHARE: DropWords(
        "are of a source that has its share of the steps", "train faster, or see `batching: max_share_per_source:`"
    ),
    DropReason.RUN_STOPPED: DropWords("came while the run was stopped", "`rollbus run resume` continues it"),
    DropReason.RUN_REMOVED: DropWords(
        "waited in a run that is no longer in the settings", "put its section back, and it goes on"
    ),
}
UNKNOWN = DropWords("were dropped", "`rollbus sql run drops-by-reason` has the details")
