"""Trajectories, revised rewards and scores → their tables; a trajectory's tokens are in `histories`."""

from collections.abc import Iterable

from rollbus.consumers.clickhouse.store.fills import Fill, columns_of
from rollbus.consumers.clickhouse.store.origin import Origin, Rows, time_ms
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids, token_count
from rollbus.schemas.records.trajectories import Reward, RewardRevised, Score, Trajectory, Turn, TurnReward


def _versions(record: Trajectory) -> list[int]:
    return [span.policy_version for history in record.histories for span in history.spans]


TRAJECTORIES = Fill(
    "trajectories",
    {
        **columns_of(Trajectory),
        "turns": lambda record: len(record.turns),
        "tools": lambda record: len(record.tools),
        "rewards": lambda record: len(record.rewards),
        "histories": lambda record: len(record.histories),
        "tokens": lambda record: sum(token_count(history.token_ids) for history in record.histories),
        "sampled_tokens": lambda record: sum(token_count(history.logprobs) for history in record.histories),
        "min_policy_version": lambda record: min(_versions(record), default=None),
        "max_policy_version": lambda record: max(_versions(record), default=None),
    },
)
REWARD_REVISIONS = Fill(
    "reward_revisions",
    {**columns_of(RewardRevised, leave_out=("new", "last_turn")), "rewards": lambda record: len(record.rewards)},
)
SCORES = Fill("scores", columns_of(Score, leave_out=("turn_ids", "turn_rewards", "revised_at", "hints_at")))
_TURNS = Fill("trajectory_turns", columns_of(Turn, leave_out=("response_id",)))
_REWARDS = Fill("trajectory_rewards", columns_of(Reward, leave_out=("comment",)))
_TURN_REWARDS = Fill("turn_rewards", columns_of(TurnReward))


def turn_rewards(record: Score, origin: Origin) -> Rows:
    """Return what components say of a score's turns."""
    shared = {
        "trajectory_id": record.trajectory_id,
        "episode_id": record.episode_id,
        "revision": record.revision,
    }
    return [
        ("turn_rewards", _TURN_REWARDS.row(reward, origin, **shared, position=position))
        for position, reward in enumerate(record.turn_rewards)
    ]


def trajectory_parts(record: Trajectory, origin: Origin) -> Rows:
    """Return a trajectory's turns, the rewards that it had when it was assembled, and its token histories."""
    ids = {"trajectory_id": record.trajectory_id, "episode_id": record.episode_id}
    started_at = time_ms(record.started_at_ms)
    rows: Rows = [
        ("trajectory_turns", _TURNS.row(turn, origin, **ids, turn=index, started_at=started_at))
        for index, turn in enumerate(record.turns)
    ]
    rows += _rewards(record, 0, record.assembled_at_ms, record.rewards, origin)
    for index, history in enumerate(record.histories):
        row = origin.row(
            **ids,
            history=index,
            token_ids=decode_token_ids(history.token_ids),
            logprobs=decode_logprobs(history.logprobs),
            span_starts=[span.start for span in history.spans],
            span_ends=[span.end for span in history.spans],
            span_turns=[span.turn for span in history.spans],
            span_policy_versions=[span.policy_version for span in history.spans],
            started_at=started_at,
        )
        rows.append(("histories", row))
    return rows


def revised_rewards(record: RewardRevised, origin: Origin) -> Rows:
    """Return what a revision changes: the rewards that are new, and those that are no longer in force."""
    new_ids = frozenset(record.new)
    new = (reward for reward in record.rewards if reward.event_id in new_ids)
    place = (record, record.revision, record.revised_at_ms)
    return [*_rewards(*place, new, origin), *_rewards(*place, record.withdrawn, origin, in_force=False)]


def _rewards(
    record: Trajectory | RewardRevised,
    revision: int,
    revised_at_ms: int,
    rewards: Iterable[Reward],
    origin: Origin,
    *,
    in_force: bool = True,
) -> Rows:
    shared = {
        "trajectory_id": record.trajectory_id,
        "episode_id": record.episode_id,
        "revision": revision,
        "revised_at": time_ms(revised_at_ms),
        "in_force": in_force,
    }
    return [("trajectory_rewards", _REWARDS.row(reward, origin, **shared)) for reward in rewards]
