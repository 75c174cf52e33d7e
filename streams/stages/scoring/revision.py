"""What scoring needs when the rewards of a scored trajectory are revised: its input, and the answers that stay.

The trajectory itself is not read again. A function that reads feedback receives what the last score and the revision
say of it; all other components keep the answers that are in the score.
"""

from rollbus.schemas.records.config import RewardConfig
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.trajectories import LastTurn, RewardRevised, Score, Trajectory, Turn, TurnReward
from rollbus.streams.rewards.contract import average_turns
from rollbus.streams.stages.scoring.answers import ComponentAnswer


def trajectory_of_revision(old: Score, revision: RewardRevised) -> Trajectory:
    """Return the trajectory that a function that reads feedback receives when rewards are revised."""
    last = revision.last_turn
    turns = () if last is None else (_spoken_turn(last),)
    return Trajectory(
        turns=turns,
        trajectory_id=old.trajectory_id,
        episode_id=old.episode_id,
        root_episode_id=old.episode_id,
        task=old.task,
        example_id=old.example_id,
        group_hint=old.group_hint,
        agent=old.agent,
        labels=old.labels,
        started_at_ms=0,
        ended_at_ms=0,
        assembled_at_ms=0,
        first_seen_ms=old.first_seen_ms,
        closed_by="ended",
        rewards=revision.rewards,
        trainable=old.trainable,
        untrainable_reason=old.untrainable_reason,
    )


def _spoken_turn(last: LastTurn) -> Turn:
    """Return an episode's last turn as far as a revision knows it."""
    return Turn(
        event_id=last.event_id,
        added_messages=(Message(role="user", content=last.question),),
        completion=Message(role="assistant", content=last.answer),
        occurred_at_ms=0,
        trainable=False,
        untrainable_reason="words_only",
    )


def answers_of_score(old: Score, rewards: tuple[RewardConfig, ...]) -> dict[str, ComponentAnswer]:
    """Return the answers that a score holds."""
    error = old.error or "the component failed before" if old.outcome == "failed" else None
    return {
        reward.name: ComponentAnswer(old.components[reward.name], turns=turns_of(old, reward.name))
        if reward.name in old.components
        else ComponentAnswer(error=error, turns=turns_of(old, reward.name))
        for reward in rewards
    }


def keep_own_words(before: ComponentAnswer | None, now: ComponentAnswer) -> ComponentAnswer:
    """Return an answer about a revision with what the trajectory's own words made its component say before."""
    own_turns = tuple(turn for turn in before.turns if not turn.event_id) if before else ()
    if not own_turns or now.error is not None:
        return now
    turns = own_turns + tuple(turn for turn in now.turns if turn.event_id)
    values = average_turns(turns)
    return ComponentAnswer(values.total, turns=values.turns)


def turns_of(score: Score, component: str) -> tuple[TurnReward, ...]:
    """Return what a component says of single turns in a score."""
    return tuple(turn for turn in score.turn_rewards if turn.component == component)
