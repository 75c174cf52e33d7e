"""Reason of a drop → the stage of the funnel that it belongs to, what happened, and the one thing to do.

A new DropReason gets its line here; a test counts them. `{n}` is not needed: the funnel writes the number before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollbus.health.funnel.numbers import GROUPED, IN_STEP, REWARDED, TRAINABLE, WITH_SIGNAL
from rollbus.producers.turns.advice import advise
from rollbus.schemas.records.drops import DropReason


@dataclass(frozen=True, slots=True)
class Loss:
    """What a reason means to a person."""

    stage: int
    """Which stage the episodes did not reach."""
    what: str
    remedy: str


OF_ONE = {"have": "has", "are": "is", "were": "was"}
"""Verbs, in the plural, with which the words of a loss begin → the same of one episode."""
NO_VERSION = "no_policy_version"
"""Why a run cannot use an episode of which every turn could be trained; the verdicts on turns are the producers'."""
_SELECT = "`rollbus sql run why-not-trained --param id=EPISODE` shows where"
LOSSES: Mapping[str, Loss] = {
    DropReason.UNTRAINABLE: Loss(
        TRAINABLE, "have no turn that can be trained", "see `rollbus sql run untrainable-turns`"
    ),
    DropReason.MISSING_EVENTS: Loss(
        TRAINABLE, "lost events on their way", "look at the agent's log, and let it end with `recorder.close()`"
    ),
    DropReason.UNFINISHED: Loss(
        TRAINABLE,
        "have no end, since their agent was killed or cut off, and no reward after it",
        "let the agent end its episodes; `filter: {unfinished: all}` takes them as they are",
    ),
    DropReason.TOO_LARGE: Loss(TRAINABLE, "have a turn above the limit on records", "record smaller turns"),
    DropReason.NO_TURNS: Loss(
        TRAINABLE, "have no turn", "call the model inside the episode, by a client that rollbus sees"
    ),
    DropReason.TOO_SHORT: Loss(TRAINABLE, "are below `assembly: min_episode_length`", "lower it, if they should count"),
    DropReason.NOT_TARGETED: Loss(
        TRAINABLE, "are not of this run, by its filter or its model", "compare `runs: filter:` and `model:` with them"
    ),
    DropReason.EXCLUDED: Loss(TRAINABLE, "were excluded from training", "nothing, if you meant it"),
    DropReason.SCORE_MISSING: Loss(
        REWARDED, "had no reward when they were to be grouped", "report one: `rb.feedback(EPISODE, reward=…)`"
    ),
    DropReason.SCORE_FAILED: Loss(
        REWARDED, "have a reward function that failed", "`rollbus sql run drops-by-reason` has its error"
    ),
    DropReason.ORPHANED_REWARD: Loss(REWARDED, "have a reward of an unknown episode", _SELECT),
    DropReason.UNRESOLVED_ALIAS: Loss(REWARDED, "have a reward under an unknown alias", "declare the alias first"),
    DropReason.REWARD_NOT_ALLOWED: Loss(
        REWARDED, "have a reward of a source that may not set it", "see `assembly: reward_sources:`"
    ),
    DropReason.TOO_MANY_REPORTS: Loss(
        REWARDED, "have more reports by one principal than `assembly: max_reports:`", "raise it, if they are meant"
    ),
    DropReason.OVERLONG: Loss(GROUPED, "are longer than `grouping: max_history_tokens`", "raise it, if memory allows"),
    DropReason.INCOMPLETE_GROUP: Loss(
        GROUPED, "waited for members of their group that never came", "attempt each example several times"
    ),
    DropReason.GROUP_CLOSED: Loss(GROUPED, "came after their group had closed", "raise `grouping: window_ms`"),
    DropReason.GROUP_MISMATCH: Loss(
        GROUPED, "began with another prompt than their group", "leave the check for equal prompts off"
    ),
    DropReason.DUPLICATE_CONFLICT: Loss(TRAINABLE, "have two different events under one id", _SELECT),
    DropReason.LATE_EVENT: Loss(TRAINABLE, "have events that came after their end", "end the episode last"),
    DropReason.NO_SIGNAL: Loss(
        WITH_SIGNAL,
        "are in a group whose rewards are all equal",
        "see `rollbus sql run groups-without-signal`",
    ),
    DropReason.CURRICULUM: Loss(IN_STEP, "were not chosen by the curriculum", "see `runs: curriculum:`"),
    DropReason.SUPERSEDED: Loss(
        IN_STEP, "waited while newer groups came", "train faster, or raise `batching: max_waiting_groups`"
    ),
    DropReason.STALE: Loss(IN_STEP, "are older than `batching: max_off_policy_steps`", "train faster, or raise it"),
    DropReason.OFF_LINEAGE: Loss(
        IN_STEP, "were sampled by weights that the run does not continue", "let the agent ask for the served version"
    ),
    DropReason.TEMPERATURE: Loss(IN_STEP, "were sampled at another temperature", "ask at temperature 1"),
    DropReason.SAMPLING: Loss(
        IN_STEP, "were sampled with top_p, top_k, min_p or a penalty", "ask without them, or serve processed log-probs"
    ),
    DropReason.PAYLOAD_LOST: Loss(IN_STEP, "are no longer in the log", "raise `worker: retention_hours:`"),
    DropReason.REJECTED_BY_BACKEND: Loss(
        IN_STEP, "were refused by the backend", "`rollbus trainer steps` has its message"
    ),
    DropReason.SOURCE_SHARE: Loss(
        IN_STEP,
        "are of a source that has its share of the steps",
        "train faster, or see `batching: max_share_per_source:`",
    ),
    DropReason.RUN_STOPPED: Loss(IN_STEP, "came while the run was stopped", "`rollbus run resume` continues it"),
    DropReason.RUN_REMOVED: Loss(
        IN_STEP, "waited in a run that is no longer in the settings", "put its section back, and it goes on"
    ),
}
UNKNOWN = Loss(IN_STEP, "were dropped", "`rollbus sql run drops-by-reason` has the details")


def explain_loss(reason: str, detail: str = "") -> Loss:
    """Return what a reason means; the detail of an untrainable episode decides what to do."""
    loss = LOSSES.get(reason, UNKNOWN)
    if reason == DropReason.UNTRAINABLE and detail:
        return Loss(loss.stage, f"have no turn that can be trained ({detail})", advise_turns(detail))
    return loss


def agree(what: str, number: int) -> str:
    """Return a loss's words with its verb as the number asks for."""
    verb, _, rest = what.partition(" ")
    return f"{OF_ONE[verb]} {rest}" if number == 1 and verb in OF_ONE else what


def advise_turns(verdict: str) -> str:
    """Return what to change about turns that cannot be trained."""
    if verdict == NO_VERSION:
        return "the server does not say which weights answered; rollbus' own does: let the agent ask there"
    return advise(verdict, "")
