"""A batch as ART's trajectory groups: exact ids and log-probs, no text, since no chat is rendered again."""

from collections.abc import Iterable

from art.trajectories import LegacyHistory, Trajectory, TrajectoryGroup
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import group_trajectories

TRAJECTORY_ID = "rollbus_trajectory_id"


def art_groups(trajectories: Iterable[TrainTrajectory]) -> list[TrajectoryGroup]:
    """Groups in the order of their first member, members in theirs."""
    groups = group_trajectories(trajectories).values()
    return [TrajectoryGroup(list(map(_art_trajectory, members))) for members in groups]


def _art_trajectory(trajectory: TrainTrajectory) -> Trajectory:
    histories: dict[int, list[Choice]] = {}
    for turn in trajectory.turns:
        histories.setdefault(turn.history, []).append(_choice(turn))
    first, *more = histories.values()
    return Trajectory(
        messages_and_choices=list(first),
        additional_histories=[LegacyHistory(messages_and_choices=list(choices)) for choices in more],
        reward=trajectory.reward,
        metadata={TRAJECTORY_ID: trajectory.trajectory_id},
    )


def _choice(turn: TurnTokens) -> Choice:
    """Return a Choice as ART reads it."""
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": ChatCompletionMessage(role="assistant", content=""),
            "prompt_token_ids": decode_token_ids(turn.prompt_token_ids).tolist(),
            "token_ids": decode_token_ids(turn.completion_token_ids).tolist(),
            "art_completion_logprobs": decode_logprobs(turn.logprobs).tolist(),
        }
    )
