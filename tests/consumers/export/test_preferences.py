"""Preference pairs: only real preferences, the clearest first."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.export.preferences import Candidate, group_candidates, preference_pairs


def candidate(name: str, score: float, *, text: str | None = None, prompt: str = "move", **fields: Any) -> Candidate:
    return Candidate(
        id=name,
        prompt=({"role": "user", "content": prompt},),
        completion={"role": "assistant", "content": text or name},
        score=score,
        **fields,
    )


def names(pairs: Sequence[Any]) -> list[tuple[str, str]]:
    return [(pair.chosen.id, pair.rejected.id) for pair in pairs]


def test_the_best_is_preferred_to_the_worst() -> None:
    pairs = preference_pairs([candidate("a", 0.2), candidate("b", 0.9), candidate("c", 0.5)])
    assert names(pairs) == [("b", "a")]


def test_every_pair_that_differs_enough_is_made_when_asked_for() -> None:
    answers = [candidate("a", 0.5), candidate("b", 1.0), candidate("c", 0.0), candidate("d", 0.75)]
    assert names(preference_pairs(answers, exhaustive=True, min_margin=0.5)) == [
        ("b", "c"),
        ("d", "c"),
        ("a", "c"),
        ("b", "a"),
    ]
    assert len(preference_pairs(answers, exhaustive=True, max_pairs=2)) == 2


def test_equal_scores_and_equal_answers_are_not_a_preference() -> None:
    assert preference_pairs([candidate("a", 0.5), candidate("b", 0.5)]) == []
    assert preference_pairs([candidate("a", 0.0, text="x"), candidate("b", 1.0, text="x")]) == []


def test_only_answers_to_the_same_prompt_and_tools_are_compared() -> None:
    answers = [candidate("a", 0), candidate("b", 1, prompt="other"), candidate("c", 1), candidate("d", 0, tools="[1]")]
    assert [[member.id for member in group] for group in group_candidates(answers)] == [["a", "c"], ["b"], ["d"]]


@given(st.lists(st.floats(-10, 10), max_size=7), st.floats(0, 5), st.randoms(use_true_random=False))
def test_the_order_of_the_answers_does_not_matter(scores: list[float], min_margin: float, random: Any) -> None:
    answers = [candidate(f"c{index}", score) for index, score in enumerate(scores)]
    shuffled = random.sample(answers, len(answers))
    pairs = preference_pairs(answers, min_margin=min_margin, exhaustive=True)
    assert pairs == preference_pairs(shuffled, min_margin=min_margin, exhaustive=True)
    assert all(pair.margin > 0 and pair.margin >= min_margin for pair in pairs)
    assert len(pairs) == sum(1 for a in scores for b in scores if a > b and a - b >= min_margin)
