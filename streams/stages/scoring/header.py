"""A trajectory → the header of its score: all that later stages decide from, without a value."""

from collections.abc import Mapping

from rollbus.schemas.record_makers import copier
from rollbus.schemas.records.tokens import token_count
from rollbus.schemas.records.trajectories import Location, Score, Trajectory, trained_model
from rollbus.streams.stages.scoring.sketch import sketch_opening

LABEL_CHARACTERS = 2_000
"""Limit on a label in a score."""


_copy_to_score = copier(
    Trajectory,
    Score,
    *("location", "revision", "labels", "model", "opening_sketch"),
    *("tokens", "sampled_tokens", "longest_history_tokens", "min_policy_version", "max_policy_version"),
    *("outcome", "value", "components", "reward_version", "error", "excluded", "config_hash"),
    *("served_versions", "latency_ms", "tool_errors", "turn_ids", "turn_rewards", "revised_at", "hints_at"),
)
"""Copies the fields that both have; these are given."""


def make_header(trajectory: Trajectory, location: Location) -> Score:
    """Return the fields that later stages decide on, without a value."""
    spans = [span for history in trajectory.histories for span in history.spans]
    versions = [span.policy_version for span in spans]
    lengths = [token_count(history.token_ids) for history in trajectory.histories]
    turns = trajectory.turns
    return _copy_to_score(
        trajectory,
        location=location,
        revision=0,
        labels=_shorten_labels(trajectory.labels),
        model=trained_model(trajectory),
        opening_sketch=sketch_opening(turns[0].added_messages) if turns else "",
        tokens=sum(lengths),
        sampled_tokens=sum(span.end - span.start for span in spans),
        longest_history_tokens=max(lengths, default=0),
        min_policy_version=min(versions, default=None),
        max_policy_version=max(versions, default=None),
        outcome="missing",
        value=None,
        components={},
        reward_version="",
        error=None,
        excluded=False,
        config_hash="",
        served_versions=tuple(sorted({turn.policy_version for turn in turns if turn.policy_version is not None})),
        latency_ms=max((turn.latency_ms for turn in turns if turn.latency_ms is not None), default=None),
        tool_errors=sum(tool.error is not None for tool in trajectory.tools),
        turn_ids=tuple(turn.event_id for turn in turns) if len(turns) > 1 else (),
        turn_rewards=(),
        revised_at=None,
        hints_at=None,
    )


def _shorten_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Cut labels that hold whole documents: a header must fit one record, and the trajectory has them in full."""
    if all(len(value) <= LABEL_CHARACTERS for value in labels.values()):
        return labels
    return {name: value[:LABEL_CHARACTERS] for name, value in labels.items()}
