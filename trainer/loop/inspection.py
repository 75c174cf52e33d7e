"""A payload → `Inspected`: whether it can be trained at all, and its turns; the door then judges it within its step.

Pure. It needs neither base nor exclusions, so it runs while the backend still trains the batch before. It reads every
number of a long sequence; the rest costs the door nothing.

For distillation it is told what would have helped a turn: a member's hints name the turns, the log has the words. A
judge's own words are in the score. Where it wrote none, the hint is what the user said. A report's words are in the
newest revision of the trajectory's rewards, or in the trajectory, if it came before that was written. Words without a
report are the trajectory's own: the user's next message, or the error of a tool call. Words that retention removed are
no hint; the turn then learns from its reward alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import GroupMember
from rollbus.schemas.records.tokens import BYTES_PER_TOKEN, decode_logprobs, token_count
from rollbus.schemas.records.trajectories import History, RewardRevised, Score, Trajectory, Turn, call_ids
from rollbus.trainer.backends.model_settings import LEAST_TEMPERATURE
from rollbus.trainer.backends.protocol import TurnTokens


@dataclass(frozen=True, slots=True)
class Inspected:
    """A trajectory's payload, cut into what is trained."""

    payload: Trajectory
    refusal: DropReason | None
    """Why it cannot be trained in any step."""
    longest_tokens: int
    """Of its histories."""
    policy_versions: frozenset[int]
    """That sampled its trained tokens."""
    turns: tuple[TurnTokens, ...]
    """Empty if it is refused."""
    turn_ids: tuple[str, ...] = ()
    """Event ids of these turns, in their order."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """By event id of the turn: what would have helped there, in a user's or a judge's words; only where hints are
    learned from."""


def inspect(payload: Trajectory) -> Inspected:
    """Check everything that does not depend on the step."""
    refusal = _find_refusal(payload)
    turns = () if refusal is not None else _cut_turns(payload)
    return Inspected(
        payload,
        refusal,
        longest_tokens=max((token_count(history.token_ids) for history in payload.histories), default=0),
        policy_versions=frozenset(span.policy_version for history in payload.histories for span in history.spans),
        turns=turns,
        turn_ids=tuple(payload.turns[span.turn].event_id for history in payload.histories for span in history.spans)
        if turns
        else (),
    )


def add_hints(
    inspected: Inspected, member: GroupMember, revision: RewardRevised | None = None, score: Score | None = None
) -> Inspected:
    """Return a payload with the words of its member's hints; `revision` and `score` are the records that it names."""
    if not member.hints:
        return inspected
    words_of_judge = {turn.turn_event_id: turn.hint for turn in (score.turn_rewards if score else ()) if turn.hint}
    rewards = (*inspected.payload.rewards, *(revision.rewards if revision is not None else ()))
    words_by_report = {reward.event_id: reward.comment or "" for reward in rewards}
    words_of_user = {
        turn_id: words_by_report.get(event_id, "") if event_id else _words_after(inspected.payload, turn_id)
        for turn_id, event_id in member.hints.items()
    }
    words = {turn_id: words_of_judge.get(turn_id) or words for turn_id, words in words_of_user.items()}
    return replace(inspected, hints={turn_id: hint for turn_id, hint in words.items() if hint.strip()})


def _words_after(payload: Trajectory, turn_id: str) -> str:
    """Return the user's message after a turn, else the error of a tool that it called."""
    index = next((index for index, turn in enumerate(payload.turns) if turn.event_id == turn_id), None)
    if index is None:
        return ""
    following = payload.turns[index + 1 : index + 2]
    replies = [message.content or "" for turn in following for message in turn.added_messages if message.role == "user"]
    calls = set(call_ids(payload.turns[index]))
    errors = [tool.error for tool in payload.tools if tool.error and tool.tool_call_id and tool.tool_call_id in calls]
    return next(iter([*reversed(replies), *errors]), "")


def _find_refusal(payload: Trajectory) -> DropReason | None:
    if not payload.trainable or not any(history.spans for history in payload.histories):
        return DropReason.UNTRAINABLE
    if not all(map(_numbers_hold, payload.histories)) or _names_missing_turn(payload):
        return DropReason.UNTRAINABLE
    trained_turns = _list_trained_turns(payload)
    if not all(map(_temperature_holds, trained_turns)):
        return DropReason.TEMPERATURE
    return None if all(map(_samples_plainly, trained_turns)) else DropReason.SAMPLING


def _names_missing_turn(payload: Trajectory) -> bool:
    """Whether a span is of a turn that is not there: then nobody knows how it was sampled."""
    return any(span.turn >= len(payload.turns) for history in payload.histories for span in history.spans)


def _list_trained_turns(payload: Trajectory) -> list[Turn]:
    """Return the turns with trained tokens; the others may have been sampled in any way."""
    trained_turns = {span.turn for history in payload.histories for span in history.spans}
    return [turn for index, turn in enumerate(payload.turns) if index in trained_turns]


def _temperature_holds(turn: Turn) -> bool:
    """Whether the log-probs are of the distribution that was sampled from.

    At temperature 1 they are. At other temperatures only processed ones are: the update divides its logits by the
    temperature. One that was not recorded may be any: servers take it from the model's own settings.
    """
    if turn.temperature is None:
        return False
    if turn.temperature == 1:
        return True
    return turn.logprob_mode == "processed" and LEAST_TEMPERATURE <= turn.temperature < math.inf


def _samples_plainly(turn: Turn) -> bool:
    """Whether only the temperature changed the distribution.

    With other changes the recorded log-probs are of another distribution than the one sampled from.
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
    """Whether no id is negative and each log-prob is finite and at most 0; by whole arrays, since histories are long.

    A negative int32 has the highest bit of its last byte set, which no ASCII character has.
    """
    if len(history.logprobs) % BYTES_PER_TOKEN:
        return False
    logprobs, ids = decode_logprobs(history.logprobs), history.token_ids
    if logprobs and not (math.isfinite(sum(logprobs)) and max(logprobs) <= 0):
        return False
    return len(ids) % BYTES_PER_TOKEN == 0 and ids[BYTES_PER_TOKEN - 1 :: BYTES_PER_TOKEN].isascii()


def _cut_turns(payload: Trajectory) -> tuple[TurnTokens, ...]:
    return tuple(
        turn
        for index, history in enumerate(payload.histories)
        for turn in _cut_history(index, history, payload.turns, payload.producer)
    )


def _cut_history(index: int, history: History, recorded_turns: Sequence[Turn], producer: str) -> list[TurnTokens]:
    """Cut a history at its spans: each turn's prompt is everything before it."""
    turns, sampled = [], 0
    for span in history.spans:
        length = (span.end - span.start) * BYTES_PER_TOKEN
        turn = recorded_turns[span.turn]
        assert turn.temperature is not None, "_find_refusal lets no other through"
        turns.append(
            TurnTokens(
                prompt_token_ids=history.token_ids[: span.start * BYTES_PER_TOKEN],
                completion_token_ids=history.token_ids[span.start * BYTES_PER_TOKEN : span.end * BYTES_PER_TOKEN],
                logprobs=history.logprobs[sampled : sampled + length],
                policy_version=span.policy_version,
                history=index,
                temperature=turn.temperature,
                logprob_mode="processed" if turn.logprob_mode == "processed" else "raw",
                source=producer,
            )
        )
        sampled += length
    return turns
