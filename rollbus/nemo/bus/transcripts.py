"""A trajectory of the log → the toolkit's form: messages in order, log-probs with the sampled ids."""

from collections.abc import Sequence
from typing import Any

from nat.data_models.finetuning import EpisodeItem, EpisodeItemRole, Trajectory

from rollbus.producers.turns.sampling_settings import NEUTRAL
from rollbus.schemas.records import trajectories as records
from rollbus.schemas.records.events import Message, TurnRecorded
from rollbus.schemas.records.tokens import BYTES_PER_TOKEN, decode_logprobs, decode_token_ids

ROLES = {
    "user": EpisodeItemRole.USER,
    "human": EpisodeItemRole.USER,
    "assistant": EpisodeItemRole.ASSISTANT,
    "ai": EpisodeItemRole.ASSISTANT,
    "system": EpisodeItemRole.SYSTEM,
    "tool": EpisodeItemRole.TOOL,
    "function": EpisodeItemRole.FUNCTION,
}
"""Any other role is OTHER."""
STEP_REWARD = "step"
"""Added to the reward's name where a single step is rewarded."""
PUBLISHED = "rollbus_trajectory_id"
"""Metadata key that says which record a trajectory of the toolkit's form is; no other of a user's has this name."""
_METADATA = ("tool_call_id", "tool_calls", "name")
"""Fields of a message that go into the metadata of its item."""


def as_trajectory(record: records.Trajectory, worth: float, *, include_tool_calls: bool = True) -> Trajectory:
    """Return the toolkit's trajectory of one attempt; `worth` is its score, the rewards of its steps included."""
    spans = {span.turn: (history, span) for history in record.histories for span in history.spans}
    episode: list[EpisodeItem] = []
    for index, turn in enumerate(record.turns):
        episode += [_item(message, {}) for message in turn.added_messages]
        episode.append(_item(turn.completion, _logprobs(turn, *spans[index]) if index in spans else {}))
    if not include_tool_calls:
        episode = [item for item in episode if item.role not in (EpisodeItemRole.TOOL, EpisodeItemRole.FUNCTION)]
    turn_order = {turn.event_id: index for index, turn in enumerate(record.turns)}
    reports = [report for report in record.rewards if report.name.endswith(f".{STEP_REWARD}")]
    reports.sort(key=lambda report: turn_order.get(report.turn_event_id or "", 0))
    step_rewards = [report.value for report in reports]
    return Trajectory(
        episode=episode,
        reward=worth - sum(step_rewards),  # the worth is this and all shaped rewards
        shaped_rewards=step_rewards or None,
        metadata={
            "id": record.example_id,
            "run_id": record.labels.get("run"),
            "epoch": int(record.labels.get("epoch", 0)),
            "generation": int(record.labels.get("generation", 0)),
            PUBLISHED: record.trajectory_id,
            "episode_id": record.episode_id,
        },
    )


def _item(message: Message, logprobs: dict[str, Any]) -> EpisodeItem:
    role = ROLES.get(message.role, EpisodeItemRole.OTHER)
    metadata = {name: value for name in _METADATA if (value := getattr(message, name)) is not None}
    return EpisodeItem(
        role=role,
        content=message.content or "",
        logprobs=logprobs if role is EpisodeItemRole.ASSISTANT else None,
        metadata=metadata or None,
    )


def _logprobs(turn: records.Turn, history: records.History, span: records.Span) -> dict[str, Any]:
    ids = decode_token_ids(history.token_ids)
    first = sum(earlier.end - earlier.start for earlier in history.spans if earlier.end <= span.start)
    last = first + span.end - span.start  # log-probs are kept for sampled tokens alone
    packed = history.logprobs[first * BYTES_PER_TOKEN : last * BYTES_PER_TOKEN]
    return logprobs_with_tokens(
        turn, ids[: span.start], ids[span.start : span.end], decode_logprobs(packed), span.policy_version
    )


def logprobs_with_tokens(
    turn: records.Turn | TurnRecorded,
    prompt_token_ids: Sequence[int],
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    policy_version: int | None,
) -> dict[str, Any]:
    """Return OpenAI's form of a turn's log-probs, with the fields that training needs; pass it on unchanged.

    Without `token_ids` they are log-probs alone, which are not trained.
    """
    tokens = [f"token_id:{token}" for token in token_ids] or [""] * len(logprobs)
    content: list[dict[str, Any]] = [
        {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in zip(tokens, logprobs, strict=True)
    ]
    ids = {"prompt_token_ids": list(prompt_token_ids), "token_ids": list(token_ids)} if token_ids else {}
    sampling = {name: getattr(turn, name) for name in ("model", "logprob_mode", *NEUTRAL)}
    return {"content": content, **ids, "policy_version": policy_version, **sampling}
