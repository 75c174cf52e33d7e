"""What goes to a server that renders chats itself: only what it renders to the recorded tokens, and how it is told."""

import json
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.events import Message
from rollbus.schemas.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.trajectories import Trajectory
from rollbus.trainer.backends.art_released_rows import admit_rendered, configs_to_json, groups_to_json
from rollbus.trainer.backends.guards import Limits
from rollbus.trainer.backends.protocol import Said, TrainConfig, TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.conversation import conversation_of
from rollbus.trainer.door import DoorRules, check_batch
from rollbus.trainer.inspection import inspect
from tests.builders import make_group, make_trajectory
from tests.trainer.scenario import make_batch, make_payload

CONFIG = TrainConfig(advantages="art", aggregation="trajectory_mean")


def render(messages: list[dict[str, Any]]) -> list[int]:
    """One token per message: the length of its text."""
    return [len(message["content"] or "") for message in messages]


def member(name: str, reward: float, **changed: Any) -> TrainTrajectory:
    turn = TurnTokens(encode_token_ids([4]), encode_token_ids([7, 8]), encode_logprobs([-0.5, -1.0]), 0)
    said = (Said('{"role": "user", "content": "look"}'), Said('{"role": "assistant", "content": null}', 0))
    return replace(TrainTrajectory(name, "g", 0.0, reward, (turn,), said), **changed)


def admitted(*members: TrainTrajectory) -> dict[str, str]:
    request = TrainRequest("b", "main", "agent", 0, members, CONFIG)
    return admit_rendered(request, Limits(100, 100), render).dropped


def test_only_what_renders_to_its_recorded_tokens_is_sent() -> None:
    good = [member("a", 0.0), member("b", 1.0)]
    other_text = member("c", 0.5, conversation=(Said('{"role": "user", "content": "longer"}'), good[0].conversation[1]))
    untold = member("d", 0.5, conversation=())
    half_told = member("e", 0.5, turns=good[0].turns * 2)
    others_answer = Said('{"role": "assistant", "content": ""}')
    foreign = member("f", 0.5, conversation=(*good[0].conversation, others_answer))
    assert admitted(*good) == {}
    reasons = dict.fromkeys("cdef", "rejected_by_backend")
    assert admitted(*good, other_text, untold, half_told, foreign) == reasons


def test_a_group_that_is_left_without_signal_is_not_sent() -> None:
    assert admitted(member("a", 1.0), member("b", 1.0), member("c", 0.0, conversation=())) == {
        "a": "no_signal",
        "b": "no_signal",
        "c": "rejected_by_backend",
    }


def test_sampled_answers_are_choices_with_their_ids_and_the_rest_are_messages() -> None:
    ((group),) = groups_to_json([member("a", 0.25)])
    (row,) = group["trajectories"]
    user, choice = row["messages_and_choices"]
    assert row["reward"] == 0.25
    assert user == {"role": "user", "content": "look"}
    assert choice["message"] == {"role": "assistant", "content": ""}
    assert [(one["token"], one["logprob"]) for one in choice["logprobs"]["content"]] == [
        ("token_id:7", -0.5),
        ("token_id:8", -1.0),
    ]


def test_settings_have_their_names_there() -> None:
    assert configs_to_json(replace(CONFIG, loss="ppo", epsilon=0.1, kl_coefficient=0.5, kl_estimator="k3")) == (
        {"learning_rate": 1e-5, "beta": 0.5},
        {"ppo": True, "epsilon": 0.1, "epsilon_high": 0.28, "importance_sampling_level": "token"},
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"advantages": "given"},
        {"loss": "dppo"},
        {"importance_correction": "token_mask"},
        {"aggregation": "token_mean"},
        {"kl_coefficient": 0.1, "kl_estimator": "k1"},
        {"behaviour_kl_coefficient": 0.1},
        {"entropy_bonus": 0.1},
        {"off_policy_mask_threshold": 0.5},
        {"max_grad_norm": 0.5},
        {"adam_beta1": 0.8},
        {"adam_beta2": 0.95},
        {"weight_decay": 0.1},
        {"loss": "ppo", "dual_clip": 2.0},
    ],
)
def test_a_setting_it_does_not_have_is_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(RejectedError, match=next(reversed(changed))):
        configs_to_json(replace(CONFIG, **changed))


def told(**fields: Any) -> Trajectory:
    """A payload of two turns with their messages."""
    plain = make_trajectory().turns[0]
    called = '[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]'
    turns = (
        replace(
            plain,
            added_messages=(Message(role="user", content="one"),),
            completion=Message(role="assistant", tool_calls=called),
        ),
        replace(
            plain,
            added_messages=(Message(role="tool", tool_call_id="c", content="two"),),
            completion=Message(role="assistant", content="three"),
        ),
    )
    payload = make_payload("g1-0", turns=turns, version=5)
    first, second = payload.histories[0].spans
    history = replace(payload.histories[0], spans=(first, replace(second, turn=1)))
    return replace(payload, histories=(history,), **fields)


def test_a_conversation_is_every_message_in_order_with_the_turns_that_were_sampled() -> None:
    said = conversation_of(told())
    assert [json.loads(one.message)["role"] for one in said] == ["user", "assistant", "tool", "assistant"]
    assert [one.turn for one in said] == [None, 0, None, 1]
    assert json.loads(said[1].message)["tool_calls"][0]["function"]["name"] == "f"
    assert json.loads(said[2].message)["tool_call_id"] == "c"


def test_an_edited_chat_or_one_with_tools_cannot_be_told_again() -> None:
    payload = told()
    assert conversation_of(replace(payload, histories=payload.histories * 2)) == ()
    assert conversation_of(told(tools_hash="abc")) == ()


def test_calls_of_tools_that_are_no_json_cannot_be_told_again() -> None:
    first, second = told().turns
    broken = replace(first, completion=replace(first.completion, tool_calls="[{"))
    assert conversation_of(told(turns=(broken, second))) == ()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_door_tells_conversations_to_the_backends_that_ask_for_them(wanted: bool) -> None:
    group = make_group("g1")
    payloads = {each.trajectory_id: inspect(each) for each in (told(), make_payload("g1-1", version=5))}
    rules = DoorRules(4, conversations=wanted)
    found = check_batch(make_batch(0, [group]), payloads, lags={5: 0}, excluded=set(), rules=rules)
    assert [len(each.conversation) for each in found.admitted] == ([4, 2] if wanted else [0, 0])
