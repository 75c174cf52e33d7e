"""A header or an earlier score, and the answers → the score that says them. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from rollbus.schemas.record_makers import copier
from rollbus.schemas.records.config import ScoringConfig
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score
from rollbus.streams.stages.scoring.answers import ComponentAnswer, combine_answers, fit_turns
from rollbus.streams.stages.scoring.revision import answers_of_score, keep_own_words

Answers = Mapping[str, ComponentAnswer]
_copy_score = copier(
    *(Score, Score),
    *("outcome", "value", "error", "components", "reward_version", "config_hash", "turn_rewards"),
)
"""Copies a score; the fields that are named here are given."""


def write_answers(
    score: Score, answers: Answers, config: ScoringConfig, *, config_hash: str, reward_version: str
) -> tuple[Score, bool]:
    """Return the score with its value, and whether it failed."""
    places = {reward.name: place for place, reward in enumerate(config.rewards)}
    answers = dict(sorted(answers.items(), key=lambda item: places.get(item[0], len(places))))
    bounds = config.clip_low, config.clip_high
    combination = combine_answers(answers, config.rewards, *bounds)
    value, error = combination.value, combination.error
    error_text = error or "; ".join(answer.error for answer in answers.values() if answer.error)
    weights = {reward.name: reward.weight for reward in config.rewards}
    turns = [
        replace(turn, weight=weights[name], hint="" if score.excluded else turn.hint)
        for name, component in answers.items()
        if name in weights
        for turn in component.turns
    ]
    written = _copy_score(
        score,
        turn_rewards=fit_turns(turns, combination, *bounds),
        outcome="failed" if error else "missing" if value is None else "scored",
        value=value,
        error=None if score.excluded or not error_text else error_text,
        components={name: component.value for name, component in answers.items() if component.value is not None},
        reward_version=reward_version,
        config_hash=config_hash,
    )
    return written, bool(error)


def revise_header(old: Score, record: RewardRevised, at: Location) -> Score:
    """Return a score as far as a revision changes it without its answers."""
    score = replace(
        old,
        revision=record.revision,
        revised_at=at,
        excluded=record.excluded or old.excluded,
        is_rewarded_after=old.is_rewarded_after or bool(record.new),
    )
    # of an excluded one, from now on no record repeats what the person said
    return replace(score, labels={}, opening_sketch="") if score.excluded else score


def revise_answers(old: Score, answers: Answers, config: ScoringConfig) -> Answers:
    """Return the answers of a score with those about its revision in their place."""
    earlier = answers_of_score(old, config.rewards)
    return {**earlier, **{name: keep_own_words(earlier.get(name), now) for name, now in answers.items()}}
