"""A group-relative judge sees all members at once, and its grades go to the members that they are of."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rollbus.streams.rewards.contract import Option, RewardContext
from rollbus.streams.rewards.judge_relative import judge_relative
from tests.builders import make_trajectory


class Model:
    """Answers always the same, and keeps what it was asked."""

    def __init__(self, answer: str) -> None:
        self.answer, self.prompts = answer, list[str]()
        self.options: Mapping[str, Option] = {}

    async def __call__(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Option]) -> str:
        self.prompts += [message["content"] for message in messages]
        self.options = options
        return self.answer


async def judge_answers(answer: str, *texts: str, **options: Any) -> tuple[Sequence[float | None], Model]:
    model = Model(answer)
    group = [make_trajectory(f"e{number}", text=text) for number, text in enumerate(texts)]
    return await judge_relative(group, RewardContext("quality", options, model)), model


async def test_each_member_gets_its_own_grade_in_any_order() -> None:
    grades, model = await judge_answers('first is poor\n{"1": 0.25, "2": 1}', "zebra", "ant")
    assert grades == [1.0, 0.25]
    assert model.prompts[1].index("ant") < model.prompts[1].index("zebra")


async def test_a_common_beginning_is_shown_once_and_equal_answers_share_a_grade() -> None:
    grades, model = await judge_answers('{"1": 0, "2": 0.5}', "yes", "no", "yes", rubric="Be terse?")
    assert grades == [0.5, 0.0, 0.5]
    assert model.prompts[0].startswith("Be terse?")
    assert model.prompts[1].count("<opening>") == 1
    assert model.prompts[1].count("<attempt ") == 2
    assert model.options["max_tokens"] == 1_024


async def test_equal_members_are_not_sent_to_the_judge() -> None:
    grades, model = await judge_answers("", "same", "same")
    assert (grades, model.prompts) == ([1.0, 1.0], [])


@pytest.mark.parametrize(
    "answer", ["nothing", "{}", '{"1": 0.5}', '{"1": 0.5, "2": 7}', '{"1": 0.5, "2": true}', '{"1": 0.5, "2": NaN}']
)
async def test_an_answer_without_a_grade_for_each_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match="judge_relative: no"):
        await judge_answers(answer, "a", "b")


async def test_a_worker_without_an_endpoint_says_what_to_set() -> None:
    with pytest.raises(ValueError, match=r"judge\.base_url"):
        await judge_relative([make_trajectory()], RewardContext("quality"))
