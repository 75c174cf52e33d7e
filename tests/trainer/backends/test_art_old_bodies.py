"""What released ART clients send is trained on its recorded ids, or refused by name; nothing is guessed in silence."""

from typing import Any

import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.art_server.control.old_bodies import read_call, trainable
from rollbus.trainer.backends.admission import Limits

USER = {"role": "user", "content": "choose"}
LIMITS = Limits(max_tokens=16, vocabulary=100)


def choice(*token_ids: int, shown: list[int] | None = None, **changed: Any) -> dict[str, Any]:
    content = [{"token": f"token_id:{token_id}", "logprob": -0.5} for token_id in token_ids]
    made: dict[str, Any] = {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": "x" * len(token_ids)},
        "logprobs": {"content": content},
    }
    return made | ({} if shown is None else {"prompt_token_ids": shown}) | changed


def sampled(logprob: float) -> dict[str, Any]:
    return {"content": [{"token": "token_id:7", "logprob": logprob}]}


def trajectory(*items: dict[str, Any], reward: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"messages_and_choices": list(items), "reward": reward, **more}


def render(messages: list[dict[str, Any]], tools: Any) -> list[int]:
    """As many ids as messages; the first tells the tools."""
    return [len(tools or ()), *range(1, len(messages))]


def read(*groups: list[dict[str, Any]]) -> Any:
    return read_call([{"trajectories": group} for group in groups], render)


def test_recorded_ids_are_taken_as_they_are_and_nothing_is_rendered() -> None:
    call = read([trajectory(USER, choice(7, 8, shown=[1, 2]), USER, choice(9, shown=[1, 2, 7, 8, 3]))])
    (train_trajectory,) = call.trajectories
    assert call.rendered_prompts == 0
    assert [decode_token_ids(turn.prompt_token_ids).tolist() for turn in train_trajectory.turns] == [
        [1, 2],
        [1, 2, 7, 8, 3],
    ]
    assert [decode_token_ids(turn.completion_token_ids).tolist() for turn in train_trajectory.turns] == [[7, 8], [9]]
    assert decode_logprobs(train_trajectory.turns[0].logprobs).tolist() == [-0.5, -0.5]


def test_an_unrecorded_prompt_is_rendered_from_all_messages_before_it() -> None:
    call = read([trajectory(USER, choice(7), USER, choice(8), tools=[{}, {}])])
    assert call.rendered_prompts == 2
    assert [decode_token_ids(turn.prompt_token_ids).tolist() for turn in call.trajectories[0].turns] == [
        [2],
        [2, 1, 2],
    ]


def test_rendered_prompts_are_never_mixed_with_recorded_ones() -> None:
    with pytest.raises(RejectedError, match=r"1 choices bring their prompt_token_ids and 1 do not; .*never mixed"):
        read([trajectory(USER, choice(7)), trajectory(USER, choice(7, shown=[1]))])


def test_an_answer_without_logprobs_is_context_and_not_trained() -> None:
    call = read([trajectory(USER, choice(7, logprobs=None), USER, choice(8))])
    (turn,) = call.trajectories[0].turns
    assert decode_token_ids(turn.prompt_token_ids).tolist() == [0, 1, 2]


def test_additional_histories_are_token_sequences_of_the_same_trajectory() -> None:
    second = {"messages_and_choices": [USER, choice(8)]}
    call = read([trajectory(USER, choice(7), additional_histories=[second])])
    assert [turn.history for turn in call.trajectories[0].turns] == [0, 1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (trajectory(choice(7), reward=float("nan")), "0-0 has the reward nan"),
        (trajectory(choice(7), reward=10**400), "0-0 .*too large"),
        (trajectory(choice(7, logprobs={"content": [{"token": "a", "logprob": -1.0}]})), "token 'a' as text"),
        (trajectory(choice(7, logprobs={"content": [{"token": "token_id:x", "logprob": -1.0}]})), "0-0 .*'x'"),
        (trajectory(choice(7, logprobs={"content": [{"token": "token_id:7"}]})), "0-0 .*logprob"),
        (trajectory(choice(2**40)), r"0-0 .*below 2\^31"),
        (trajectory(choice(7, shown=[-1])), "0-0 .*must not be negative"),
        (trajectory(choice(7, logprobs=sampled(float("-inf")))), "0-0 .*log-prob -inf at position 0"),
        (trajectory(choice(7, logprobs=sampled(0.5))), "0-0 .*log-prob 0.5 at position 0"),
        ({"messages_and_choices": [choice(7)]}, "0-0 .*reward"),
    ],
    ids=[
        *("reward", "huge reward", "text token", "no id", "no log-prob", "beyond int32", "negative id"),
        *("infinite log-prob", "positive log-prob", "no reward"),
    ],
)
def test_an_untrainable_part_is_refused_with_its_place(body: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectedError, match=message):
        read([body])


@pytest.mark.parametrize(
    "wrong",
    [
        choice(7, shown=[1], token_ids=[7, 8]),
        choice(100, shown=[1]),
    ],
    ids=["more ids than log-probs", "beyond the vocabulary"],
)
def test_tokens_that_do_not_fit_refuse_the_call(wrong: dict[str, Any]) -> None:
    with pytest.raises(RejectedError, match=r"trajectory 0-1 .* cannot be trained: untrainable"):
        trainable(read([trajectory(choice(7, shown=[1])), trajectory(wrong, reward=0.0)]), LIMITS)


def test_an_overlong_trajectory_leaves_before_the_mean_of_its_group_is_taken() -> None:
    long = trajectory(choice(7, shown=list(range(1, 17))), reward=9.0)
    split = trainable(read([trajectory(choice(7, shown=[1]), reward=float(r)) for r in (0, 1)] + [long]), LIMITS)
    assert [trajectory.trajectory_id for trajectory in split.trajectories] == ["0-0", "0-1"]
    assert split.dropped == {"overlong": 1}


def test_a_group_that_differs_by_rounding_only_is_left_out() -> None:
    flat_group = [trajectory(choice(7, shown=[1]), reward=reward) for reward in (1e6 / 3, 1e6 / 3 + 1e-9, 1e6 / 3)]
    group_with_signal = [trajectory(choice(7, shown=[1]), reward=reward) for reward in (0.0, 1.0)]
    split = trainable(read(flat_group, group_with_signal), LIMITS)
    assert [trajectory.trajectory_id for trajectory in split.trajectories] == ["1-0", "1-1"]
    assert split.dropped == {"no_signal": 3}
