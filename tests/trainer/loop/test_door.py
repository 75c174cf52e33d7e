"""The trainer's door: who is trained, with exactly which tokens, and why the others are not."""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.steps import DroppedMember
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids, encode_token_ids
from rollbus.schemas.records.trajectories import History, Span, Trajectory
from rollbus.trainer.loop.door import DoorResult, DoorRules, check_batch
from rollbus.trainer.loop.inspection import inspect
from tests.builders import make_group, make_member, make_trajectory
from tests.trainer.scenario import make_batch, make_payload

LAGS = {5: 0, 4: 1, 3: 2, 0: 3}
"""The lineage of base 5: version 1 and 2 were rolled back."""


def check(
    group: Group, payloads: Iterable[Trajectory], *, excluded: Iterable[str] = (), limit: int = 4, longest: int = 100
) -> DoorResult:
    """Pass one group through the door."""
    return check_batch(
        make_batch(0, [group]),
        {payload.trajectory_id: inspect(payload) for payload in payloads},
        lags=LAGS,
        excluded=set(excluded),
        rules=DoorRules(limit, longest),
    )


def reasons(result: DoorResult) -> Mapping[str, str]:
    """Reason by trajectory."""
    return {member.trajectory_id: member.reason for member in result.dropped}


def other(**fields: Any) -> Trajectory:
    """The payload of member g1-0; g1-1 is always as it should be."""
    return make_payload("g1-0", **fields)


def broken_history(logprobs: bytes, *, token_ids: bytes | None = None) -> History:
    return History(
        token_ids=token_ids or encode_token_ids([1, 2, 3]),
        logprobs=logprobs,
        spans=(Span(start=1, end=3, turn=0, policy_version=0),),
    )


def as_int32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def as_float32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def turn_with(**fields: Any) -> Any:
    """The one turn of a payload, changed."""
    return replace(make_trajectory().turns[0], **fields)


def test_each_span_becomes_a_turn_whose_prompt_is_everything_before_it() -> None:
    result = check(make_group("g1"), [make_payload("g1-0", seed=20, version=3), make_payload("g1-1")])
    first = result.admitted[0]
    assert (first.trajectory_id, first.group_id, first.advantage, first.reward) == ("g1-0", "g1", -0.5, 0.0)
    assert [list(decode_token_ids(turn.prompt_token_ids)) for turn in first.turns] == [[1, 2, 3], [1, 2, 3, 20, 21, 7]]
    assert [list(decode_token_ids(turn.completion_token_ids)) for turn in first.turns] == [[20, 21], [22]]
    assert [list(decode_logprobs(turn.logprobs)) for turn in first.turns] == [[-0.5, -0.25], [-0.125]]
    assert [(turn.policy_version, turn.history) for turn in first.turns] == [(3, 0), (3, 0)]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "payload_lost"),
        (other(trainable=False, untrainable_reason="no_logprobs"), "untrainable"),
        (other(histories=()), "untrainable"),
        (other(histories=(broken_history(as_float32(-0.5, math.nan)),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-math.inf, -0.5)),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-0.5, 0.25)),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-0.5, -0.25) + b"\0"),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-1, -1), token_ids=as_int32(7, 8, -1)),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-1, -1), token_ids=as_int32(-(2**31), 8, 9)),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-1, -1), token_ids=as_int32(7, 8, 9) + b"\0"),)), "untrainable"),
        (other(histories=(broken_history(as_float32(-1, -1), token_ids=as_int32(0, 255, 2**31 - 1)),)), None),
        (other(turns=(turn_with(temperature=None),)), "temperature"),
        (other(turns=()), "untrainable"),
        (other(turns=(turn_with(temperature=0.7, logprob_mode="raw"),)), "temperature"),
        (other(turns=(turn_with(temperature=0.7, logprob_mode="unknown"),)), "temperature"),
        (other(turns=(turn_with(temperature=0.0, logprob_mode="processed"),)), "temperature"),
        (other(turns=(turn_with(temperature=1e-30, logprob_mode="processed"),)), "temperature"),
        (other(turns=(turn_with(temperature=0.7, logprob_mode="processed"),)), None),
        (other(turns=(turn_with(top_p=0.9),)), "sampling"),
        (other(turns=(turn_with(top_k=40),)), "sampling"),
        (other(turns=(turn_with(min_p=0.05),)), "sampling"),
        (other(turns=(turn_with(frequency_penalty=0.5),)), "sampling"),
        (other(turns=(turn_with(presence_penalty=-0.5),)), "sampling"),
        (other(turns=(turn_with(repetition_penalty=1.1),)), "sampling"),
        (
            other(
                turns=(
                    turn_with(
                        top_p=1.0,
                        top_k=-1,
                        min_p=0.0,
                        frequency_penalty=0.0,
                        presence_penalty=0.0,
                        repetition_penalty=1.0,
                    ),
                )
            ),
            None,
        ),
        (other(histories=make_payload("x").histories, version=0), None),
        (other(turns=(turn_with(temperature=1.0),)), None),
        (other(version=1), "off_lineage"),
        (other(version=6), "off_lineage"),
        (other(root_episode_id="forgotten"), "excluded"),
    ],
)
def test_a_member_is_refused_for_the_reason_that_holds(payload: Trajectory | None, reason: str | None) -> None:
    payloads = [make_payload("g1-1"), *([payload] if payload else [])]
    result = check(make_group("g1"), payloads, excluded=["forgotten"])
    assert reasons(result) == ({} if reason is None else {"g1-0": reason})
    assert [trajectory.trajectory_id for trajectory in result.admitted] == (["g1-1"] if reason else ["g1-0", "g1-1"])


def test_a_group_that_loses_members_keeps_its_recorded_advantages() -> None:
    group = make_group("g1", (0.0, 1.0, 1.0))
    result = check(group, [make_payload("g1-1"), make_payload("g1-2")])
    assert [trajectory.advantage for trajectory in result.admitted] == [
        member.advantage for member in group.members[1:]
    ]


def test_a_group_of_which_no_member_has_an_advantage_left_is_dropped_whole() -> None:
    members = (make_member("a", 1.0, advantage=0.0), make_member("b", 2.0, advantage=1.0))
    result = check(make_group("g1", members=members), [make_payload("a")])
    assert reasons(result) == {"a": "no_signal", "b": "payload_lost"}


@pytest.mark.parametrize("field", ["reward", "advantage"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_never_reaches_the_backend(field: str, value: float) -> None:
    numbers: dict[str, Any] = {"reward": 0.0, "advantage": -0.5, field: value}
    members = (make_member("a", **numbers), make_member("b", advantage=0.5))
    result = check(make_group("g1", members=members), [make_payload("a"), make_payload("b")])
    assert reasons(result) == {"a": "untrainable"}


def test_lag_counts_from_the_oldest_turn_and_the_limit_itself_is_allowed() -> None:
    spans = (Span(start=1, end=2, turn=0, policy_version=3), Span(start=2, end=3, turn=0, policy_version=5))
    history = History(token_ids=encode_token_ids([1, 2, 3]), logprobs=as_float32(-1, -1), spans=spans)
    payloads = [other(histories=(history,)), make_payload("g1-1", version=5)]
    assert reasons(check(make_group("g1"), payloads, limit=2)) == {}
    assert reasons(check(make_group("g1"), payloads, limit=1)) == {"g1-0": "stale"}


def test_a_history_too_long_for_the_backend_is_dropped_whole() -> None:
    assert reasons(check(make_group("g1"), [other(), make_payload("g1-1")], longest=6)) == {
        "g1-0": "overlong",
        "g1-1": "overlong",
    }


@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=6),
    lost=st.sets(st.integers(0, 5)),
    stale=st.sets(st.integers(0, 5)),
    excluded=st.sets(st.integers(0, 5)),
)
def test_every_member_has_one_fate(rewards: list[float], lost: set[int], stale: set[int], excluded: set[int]) -> None:
    payloads = [
        make_payload(f"g1-{index}", version=0 if index in stale else 5)
        for index in range(len(rewards))
        if index not in lost
    ]
    result = check(make_group("g1", rewards), payloads, excluded=[f"e-g1-{number}" for number in excluded], limit=2)
    fates = [trajectory.trajectory_id for trajectory in result.admitted] + [
        member.trajectory_id for member in result.dropped
    ]
    assert sorted(fates) == [f"g1-{index}" for index in range(len(rewards))]
    assert all(isinstance(member, DroppedMember) for member in result.dropped)


def test_a_turn_brings_the_temperature_that_its_logprobs_were_processed_with() -> None:
    payload = other(turns=(turn_with(temperature=0.7, logprob_mode="processed"),))
    turns = check(make_group("g1"), [make_payload("g1-1"), payload]).admitted[0].turns
    assert (turns[0].temperature, turns[0].logprob_mode) == (0.7, "processed")


def labelled(batch_users: list[list[str]]) -> tuple[list[Group], list[Trajectory]]:
    """Groups of as many members as users, and their payloads."""
    groups, payloads = [], []
    for number, users in enumerate(batch_users):
        names = [f"g{number}-{place}" for place in range(len(users))]
        members = [make_member(name, 1.0, advantage=1.0) for name in names]
        groups.append(make_group(f"g{number}", members=members))
        payloads += [
            make_payload(name, labels={"user": user} if user else {}) for name, user in zip(names, users, strict=True)
        ]
    return groups, payloads


def share(groups: list[Group], payloads: list[Trajectory], most: float, source: str = "user") -> DoorResult:
    return check_batch(
        make_batch(0, groups),
        {payload.trajectory_id: inspect(payload) for payload in payloads},
        lags=LAGS,
        excluded=(),
        rules=DoorRules(4, 100, {source: most}),
    )


def test_the_largest_source_has_at_most_its_share_of_a_step() -> None:
    groups, payloads = labelled([["eve"] * 4, ["eve", "eve", "ann", "bob"], ["ann", "bob", "cat", ""]])
    assert reasons(share(groups, payloads, 0.34)) == dict.fromkeys(["g0-3", "g1-0", "g1-1"], "source_share")
    assert share(groups, payloads, 0.5).dropped == ()


def test_a_source_may_have_all_of_its_share() -> None:
    users = ["eve"] * 29 + [f"u{number}" for number in range(71)]
    assert share(*labelled([users[start : start + 10] for start in range(0, 100, 10)]), 0.29).dropped == ()


def test_a_principals_share_counts_by_signature_and_not_by_label() -> None:
    groups, payloads = labelled([["u0", "u1", "u2", "u3"], ["u4", "u5", "u6", "u7"]])
    signers = ["eve"] * 6 + ["ann", "bob"]
    signed = [
        replace(payload, principal=signer, labels={"user": user, "principal": user})
        for payload, signer, user in zip(payloads, signers, "abcdefgh", strict=True)
    ]
    assert len(share(groups, signed, 0.5, "principal").dropped) == 4
    assert share(groups, signed, 0.5).dropped == (), "users are invented"


@given(st.lists(st.lists(st.sampled_from(["eve", "ann", "bob", "cat", ""]), min_size=1, max_size=6), max_size=6),
       st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.9, 1.0]))  # fmt: skip
def test_no_source_ever_has_more_than_its_share(users: list[list[str]], most: float) -> None:
    groups, payloads = labelled(users)
    result = share(groups, payloads, most)
    names = {payload.trajectory_id: payload.labels.get("user", "") for payload in payloads}
    trained = [names[trajectory.trajectory_id] for trajectory in result.admitted]
    assert all(trained.count(user) <= most * len(trained) for user in set(trained))
    trained_ids, dropped_ids = (
        [trajectory.trajectory_id for trajectory in result.admitted],
        [member.trajectory_id for member in result.dropped],
    )
    assert sorted(trained_ids + dropped_ids) == sorted(names)
    if most == 1.0:
        assert result.dropped == ()


def two_turns(trajectory_id: str) -> Trajectory:
    payload = make_payload(trajectory_id)
    (history,) = payload.histories
    first, second = history.spans
    (turn,) = payload.turns
    turns = (replace(turn, event_id="first"), replace(turn, event_id="second"))
    return replace(payload, turns=turns, histories=(replace(history, spans=(first, replace(second, turn=1))),))


def test_turns_are_trained_with_their_own_advantages() -> None:
    members = (
        make_member("g1-0", 1.0, advantage=0.5, turn_advantages={"first": 1.0, "second": 0.0}),
        make_member("g1-1", 0.0, advantage=-1.0),
    )
    first, second = check(make_group("g1", members=members), [two_turns("g1-0"), make_payload("g1-1")]).admitted
    assert (first.advantages, second.advantages) == ((1.0, 0.0), (-1.0, -1.0))
    assert [turn.advantage for turn in second.turns] == [None, None]


def test_turns_that_cancel_out_have_signal() -> None:
    members = (make_member("g1-0", 1.0, turn_advantages={"first": 1.0, "second": -1.0}),)
    assert len(check(make_group("g1", (1.0,), members=members), [two_turns("g1-0")]).admitted) == 1


def test_an_advantage_of_a_turn_that_is_not_finite_is_refused() -> None:
    members = (make_member("g1-0", 1.0, turn_advantages={"first": math.nan, "second": 1.0}),)
    assert reasons(check(make_group("g1", (1.0,), members=members), [two_turns("g1-0")])) == {"g1-0": "untrainable"}
