"""One model answer seen from two sides to one turn.

A framework's hook that sees a call without its tokens records a turn that is `not_captured`. Where a proxy or another
client recorded the same answer with tokens, the hook's turn is only its echo: it goes, and leaves the name of the
function that asked.
"""

from collections.abc import Sequence
from dataclasses import replace

from rollbus.schemas.records.events import TurnRecorded

NOT_CAPTURED = "not_captured"


def without_echoes(turns: Sequence[TurnRecorded]) -> Sequence[TurnRecorded]:
    """Return the turns in their order, each answer once."""
    echoes = {_answer(turn): turn for turn in turns if turn.untrainable_reason == NOT_CAPTURED and turn.response_id}
    if not echoes:
        return turns
    captured = {_answer(turn) for turn in turns if turn.untrainable_reason != NOT_CAPTURED}
    return [
        _named(turn, echoes.get(_answer(turn)))
        for turn in turns
        if turn.untrainable_reason != NOT_CAPTURED or _answer(turn) not in captured
    ]


def _answer(turn: TurnRecorded) -> tuple[str | None, int]:
    return turn.response_id, turn.choice


def _named(turn: TurnRecorded, echo: TurnRecorded | None) -> TurnRecorded:
    return replace(turn, function=echo.function) if echo is not None and not turn.function else turn
