"""Turns to histories: a turn whose prompt extends a history's tokens exactly is appended, any other starts one.

Tokens are compared as the bytes that were recorded, never re-tokenised. What a prompt adds has sample mask 0 (no
span); what the policy sampled has a span and log-probs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.events import TurnRecorded
from rollbus.schemas.records.tokens import BYTES_PER_TOKEN, decode_logprobs, token_count
from rollbus.schemas.records.trajectories import History, Span

NOT_IN_TOP_LIST = -9999.0
"""What OpenAI and vLLM report instead of a log-prob that is not in the list; never a real one."""
_SURELY_LOGPROBS = bytes(range(0x80, 0xC6))
"""Highest bytes of the float32 numbers from −0 down to −8192."""

_span = maker(Span)


def token_problem(turn: TurnRecorded) -> str | None:
    """Say why a turn's tokens cannot be trained; None where they can."""
    if not turn.trainable:
        return turn.untrainable_reason
    if turn.policy_version is None:
        return "no_policy_version"
    prompt, completion, logprobs = turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs
    if not (prompt and completion and logprobs):
        return "no_token_ids"
    if not (_are_token_ids(prompt) and _are_token_ids(completion)):
        return "invalid_token_ids"
    if not _are_logprobs(logprobs):
        return "invalid_logprobs"
    return "sampling_unknown" if turn.temperature is None else None


def _are_logprobs(data: bytes) -> bool:
    """Say whether packed log-probs are finite, real and at most 0; numbers are read where bytes are not enough."""
    unusual_bytes = data[BYTES_PER_TOKEN - 1 :: BYTES_PER_TOKEN].translate(None, _SURELY_LOGPROBS)
    if not unusual_bytes and len(data) % BYTES_PER_TOKEN == 0:
        return True
    try:
        values = decode_logprobs(data)
    except InvalidRecordError:
        return False
    if unusual_bytes.count(0) == len(unusual_bytes):  # +0, or so little more than 0 that only the number shows it
        return max(values) <= 0
    return math.isfinite(sum(values)) and max(values) <= 0 and min(values) > NOT_IN_TOP_LIST


def _are_token_ids(data: bytes) -> bool:
    """Say whether packed ids are whole and none is negative: the highest byte of each is below 128."""
    return len(data) % BYTES_PER_TOKEN == 0 and data[BYTES_PER_TOKEN - 1 :: BYTES_PER_TOKEN].isascii()


@dataclass(slots=True)
class _Growing:
    prompt: bytes
    completion: bytes
    """Of the last turn; the two together are all tokens so far."""
    logprobs: list[bytes]
    spans: list[Span]

    def length(self) -> int:
        return len(self.prompt) + len(self.completion)

    def is_prefix_of(self, prompt: bytes) -> bool:
        return prompt.startswith(self.prompt) and prompt.startswith(self.completion, len(self.prompt))

    def finished(self) -> History:
        return History(
            token_ids=self.prompt + self.completion, logprobs=b"".join(self.logprobs), spans=tuple(self.spans)
        )


def merge(turns: Iterable[tuple[int, TurnRecorded]]) -> tuple[History, ...]:
    """Return the histories of the turns to be trained, each given with its index in the trajectory.

    Where several histories are a prefix of a prompt the longest is extended: it repeats the fewest tokens.
    """
    growing: list[_Growing] = []
    for index, turn in turns:
        prompt, completion = turn.prompt_token_ids or b"", turn.completion_token_ids or b""
        history: _Growing | None = None
        for candidate in growing:
            if candidate.is_prefix_of(prompt) and (history is None or candidate.length() > history.length()):
                history = candidate
        if history is None:
            history = _Growing(prompt, completion, [], [])
            growing.append(history)
        else:
            history.prompt, history.completion = prompt, completion
        start = token_count(prompt)
        history.spans.append(_span(start, start + token_count(completion), index, turn.policy_version or 0))
        history.logprobs.append(turn.logprobs or b"")
    return tuple(history.finished() for history in growing)
