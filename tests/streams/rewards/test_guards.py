"""What a gamed reward does to the text, measured: each function by hand, and the way from it to a stopped canary."""

from collections.abc import Sequence
from math import log
from typing import Any

import pytest

from rollbus.schemas.records.events import Message
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import History, Span, Trajectory, Turn
from rollbus.streams.rewards.contract import RewardContext
from rollbus.streams.rewards.registry import BUILT_IN
from tests.builders import make_trajectory

PROMPT = list(range(100, 120))
WORDS = list(range(30))


def measure(kind: str, trajectory: Trajectory, **options: Any) -> float | None:
    call: Any = BUILT_IN[kind].call
    return call(trajectory, RewardContext(kind, options))  # type: ignore[no-any-return]


def sampled_trajectory(*turns: Sequence[int], logprob: float = -0.5) -> Trajectory:
    """A trajectory whose turns sampled these tokens, one after another, after PROMPT."""
    tokens, spans = list(PROMPT), list[Span]()
    for number, turn in enumerate(turns):
        spans.append(Span(start=len(tokens), end=len(tokens) + len(turn), turn=number, policy_version=0))
        tokens += turn
    count = sum(map(len, turns))
    history = History(
        token_ids=encode_token_ids(tokens), logprobs=encode_logprobs([logprob] * count), spans=tuple(spans)
    )
    return make_trajectory(histories=(history,))


def answering_trajectory(*texts: str | None) -> Trajectory:
    return make_trajectory(
        turns=tuple(
            Turn(event_id=f"t{n}", completion=Message(role="assistant", content=text), occurred_at_ms=n, trainable=True)
            for n, text in enumerate(texts)
        )
    )


@pytest.mark.parametrize(
    ("turns", "options", "expected"),
    [
        ([WORDS], {}, 0.0),
        ([[1, 2, 3, 4] * 5], {}, 13 / 17),
        ([[1, 1, 1]], {}, 0.0),
        ([[1, 1, 1]], {"n": 2}, 0.5),
        ([WORDS, WORDS], {}, 0.0),
        ([[7] * 103, WORDS[:3]], {}, 0.99),
    ],
    ids=["none", "a sentence again and again", "too short", "pairs", "of another turn", "one token"],
)
def test_repetition_is_the_share_of_runs_that_a_turn_had_before(
    turns: Any, options: dict[str, Any], expected: float
) -> None:
    assert measure("repetition", sampled_trajectory(*turns), **options) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("turns", "options", "expected"),
    [
        ([WORDS], {}, 0.0),
        ([PROMPT], {}, 1.0),
        ([PROMPT[:10] + WORDS[:10]], {}, 3 / 13),
        ([PROMPT[:4]], {}, 0.0),
        ([PROMPT[:4]], {"n": 4}, 1.0),
        ([WORDS, WORDS], {}, 0.5),
    ],
    ids=["none", "whole", "in part", "too short", "fours", "of an earlier turn"],
)
def test_copied_is_the_share_of_runs_that_stand_before_the_turn(
    turns: Any, options: dict[str, Any], expected: float
) -> None:
    assert measure("copied", sampled_trajectory(*turns), **options) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["repetition", "copied"])
def test_runs_of_less_than_a_token_are_an_error_and_not_0(kind: str) -> None:
    with pytest.raises(ValueError, match="n is -1"):
        measure(kind, sampled_trajectory([7] * 100), n=-1)


def test_surprisal_is_the_entropy_of_an_even_policy_and_0_when_collapsed() -> None:
    assert measure("surprisal", sampled_trajectory(WORDS, logprob=-log(8))) == pytest.approx(log(8), rel=1e-6)
    assert measure("surprisal", sampled_trajectory(WORDS, logprob=0.0)) == 0.0


@pytest.mark.parametrize("kind", ["repetition", "copied", "surprisal"])
def test_without_sampled_tokens_nothing_is_measured(kind: str) -> None:
    assert measure(kind, make_trajectory(histories=())) is None


@pytest.mark.parametrize(
    ("texts", "options", "expected"),
    [
        (["Paris."], {}, 0.0),
        (["I\N{RIGHT SINGLE QUOTATION MARK}m sorry, but I cannot help with that."], {}, 1.0),
        (["I can't help it.", "Here it is."], {}, 0.5),
        (["It is done. " * 30 + "I cannot help you further."], {}, 0.0),
        ([None], {}, 0.0),
        ([], {}, None),
        (["Das kann ich leider nicht."], {"phrases": "das kann ich leider nicht|nein"}, 1.0),
        (["anything"], {"phrases": "|"}, 0.0),
    ],
    ids=["no", "yes", "half", "late words", "no text", "no turns", "own phrases", "no phrases"],
)
def test_refused_is_the_share_of_turns_that_begin_by_refusing(
    texts: list[str | None], options: dict[str, Any], expected: float | None
) -> None:
    assert measure("refused", answering_trajectory(*texts), **options) == expected
