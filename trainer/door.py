"""Decide which members of a batch are trained: recorded member and payload → `TrainTrajectory`, or a drop and why.

Pure, and the last look before the backend: everything that would spoil the weights silently is refused here. A group
that loses members keeps the advantages it was recorded with; computed again without them, they would favour
whoever is left.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from rollbus.schemas.drops import DropReason
from rollbus.schemas.groups import Group, GroupMember, TrainingBatch
from rollbus.schemas.steps import DroppedMember
from rollbus.schemas.tokens import BYTES_PER_TOKEN, decode_logprobs, token_count
from rollbus.schemas.trajectories import History, Trajectory, Turn
from rollbus.trainer.backends.protocol import Said, TrainTrajectory, TurnTokens
from rollbus.trainer.conversation import conversation_of


@dataclass(frozen=True, slots=True)
class DoorRules:
    """What a member must keep to."""

    max_off_policy_steps: int
    max_sequence_tokens: int | None = None
    """Longest history that the backend takes; None where it does not say."""
    conversations: bool = False
    """Whether the backend wants the messages beside the tokens."""


@dataclass(frozen=True, slots=True)
class DoorResult:
    """Every member of the batch, once: admitted or dropped."""

    admitted: tuple[TrainTrajectory, ...]
    dropped: tuple[DroppedMember, ...]


def check_batch(
    batch: TrainingBatch,
    payloads: Mapping[str, Trajectory],
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> DoorResult:
    """Check every member; payloads are by trajectory id, `lags` by policy version from the base of the step."""
    admitted: list[TrainTrajectory] = []
    dropped: list[DroppedMember] = []
    taken: set[str] = set()
    for group in batch.groups:
        kept, lost = _check_group(group, payloads, taken, lags=lags, excluded=excluded, rules=rules)
        admitted.extend(kept)
        dropped.extend(lost)
    return DoorResult(tuple(admitted), tuple(dropped))


def _check_group(
    group: Group,
    payloads: Mapping[str, Trajectory],
    taken: set[str],
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> tuple[list[TrainTrajectory], list[DroppedMember]]:
    kept: list[TrainTrajectory] = []
    lost: list[DroppedMember] = []
    for member in group.members:
        if member.trajectory_id in taken:
            continue  # a member named twice has one fate
        taken.add(member.trajectory_id)
        payload = payloads.get(member.trajectory_id)
        reason = _refusal(member, payload, lags=lags, excluded=excluded, rules=rules)
        if reason is None and payload is not None:
            said = conversation_of(payload) if rules.conversations else ()
            kept.append(_to_train(group.group_id, member, payload, said))
        else:
            lost.append(DroppedMember(trajectory_id=member.trajectory_id, group_id=group.group_id, reason=str(reason)))
    if any(trajectory.advantage != 0 for trajectory in kept):
        return kept, lost
    without_signal = [
        DroppedMember(trajectory_id=each.trajectory_id, group_id=group.group_id, reason=str(DropReason.NO_SIGNAL))
        for each in kept
    ]
    return [], lost + without_signal


def _refusal(
    member: GroupMember,
    payload: Trajectory | None,
    *,
    lags: Mapping[int, int],
    excluded: Container[str],
    rules: DoorRules,
) -> DropReason | None:
    """The first reason against a member, the cheap and final ones first; None admits it."""
    if member.episode_id in excluded:
        return DropReason.EXCLUDED
    if payload is None:
        return DropReason.PAYLOAD_LOST
    if payload.root_episode_id in excluded:
        return DropReason.EXCLUDED
    if not payload.trainable or not any(history.spans for history in payload.histories):
        return DropReason.UNTRAINABLE
    if not (math.isfinite(member.advantage) and math.isfinite(member.reward)):
        return DropReason.UNTRAINABLE
    if not all(map(_numbers_hold, payload.histories)):
        return DropReason.UNTRAINABLE
    if not _temperature_holds(payload):
        return DropReason.TEMPERATURE
    if not all(map(_samples_plainly, _trained_turns(payload))):
        return DropReason.SAMPLING
    longest = max(token_count(history.token_ids) for history in payload.histories)
    if rules.max_sequence_tokens is not None and longest > rules.max_sequence_tokens:
        return DropReason.OVERLONG
    return _staleness(payload, lags, rules.max_off_policy_steps)


def _staleness(payload: Trajectory, lags: Mapping[int, int], limit: int) -> DropReason | None:
    versions = {span.policy_version for history in payload.histories for span in history.spans}
    if not versions <= lags.keys():
        return DropReason.OFF_LINEAGE
    return DropReason.STALE if max(lags[version] for version in versions) > limit else None


def _temperature_holds(payload: Trajectory) -> bool:
    """Whether every trained turn's log-probs are of the distribution that it was sampled from.

    At temperature 1, or where none is recorded, they are. At another, processed ones are, and the update divides its
    logits by it; raw ones are not. Turns that were not trained may have any.
    """
    return all(map(_turn_holds, _trained_turns(payload)))


def _trained_turns(payload: Trajectory) -> list[Turn]:
    trained = {span.turn for history in payload.histories for span in history.spans}
    return [turn for index, turn in enumerate(payload.turns) if index in trained]


def _turn_holds(turn: Turn) -> bool:
    if turn.temperature is None or turn.temperature == 1:
        return True
    return turn.logprob_mode == "processed" and 0 < turn.temperature < math.inf


def _samples_plainly(turn: Turn) -> bool:
    """Whether nothing but the temperature stood between the model and the choice of a token.

    What cuts the distribution off or bends it leaves log-probs that are not those of the distribution sampled from,
    whatever their mode.
    """
    return (
        turn.top_p in (None, 1)
        and (turn.top_k is None or turn.top_k <= 0)
        and turn.min_p in (None, 0)
        and not turn.frequency_penalty
        and not turn.presence_penalty
        and turn.repetition_penalty in (None, 1)
    )


def _numbers_hold(history: History) -> bool:
    """No id negative, each log-prob finite and at most 0; without a look at each number, since histories are long.

    A negative int32 has the highest bit of its last byte set, which no ASCII character has.
    """
    logprobs, ids = decode_logprobs(history.logprobs), history.token_ids
    if logprobs and not (math.isfinite(sum(logprobs)) and max(logprobs) <= 0):
        return False
    return len(ids) % BYTES_PER_TOKEN == 0 and ids[BYTES_PER_TOKEN - 1 :: BYTES_PER_TOKEN].isascii()


def _to_train(
    group_id: str, member: GroupMember, payload: Trajectory, conversation: tuple[Said, ...]
) -> TrainTrajectory:
    turns = tuple(
        turn
        for index, history in enumerate(payload.histories)
        for turn in _turns_of_history(index, history, payload.turns)
    )
    return TrainTrajectory(
        trajectory_id=member.trajectory_id,
        group_id=group_id,
        advantage=member.advantage,
        reward=member.reward,
        turns=turns,
        conversation=conversation,
    )


def _turns_of_history(index: int, history: History, recorded: Sequence[Turn]) -> list[TurnTokens]:
    """Cut a history at its spans: each turn's prompt is everything before it."""
    turns, sampled = [], 0
    for span in history.spans:
        length = (span.end - span.start) * BYTES_PER_TOKEN
        turn = recorded[span.turn] if span.turn < len(recorded) else None
        turns.append(
            TurnTokens(
                prompt_token_ids=history.token_ids[: span.start * BYTES_PER_TOKEN],
                completion_token_ids=history.token_ids[span.start * BYTES_PER_TOKEN : span.end * BYTES_PER_TOKEN],
                logprobs=history.logprobs[sampled : sampled + length],
                policy_version=span.policy_version,
                history=index,
                temperature=1.0 if turn is None or turn.temperature is None else turn.temperature,
                logprob_mode="processed" if turn is not None and turn.logprob_mode == "processed" else "raw",
            )
        )
        sampled += length
    return turns
