"""What a user said after a turn comes with the turn, from wherever the log has it."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.trajectories import Reward, RewardRevised, Score, ToolResult, Trajectory, TurnReward
from rollbus.schemas.topics import BATCHES, SCORES, TRAJECTORIES
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest
from rollbus.trainer.loop.door import DoorRules, check_batch
from rollbus.trainer.loop.inspection import add_hints, inspect
from rollbus.trainer.train_config import Distillation, TrainConfig
from tests.builders import START_MS, make_group, make_member, make_score
from tests.trainer.scenario import SETTINGS, World, make_batch, make_payload

WORDS = "no, it's about the parcel"
HINT = "Name the parcel team."
TURN = make_payload("t1").turns[0]
REPORT = Reward(event_id="r1", name="reply", value=0.0, signal="reply", comment=WORDS)
DISTILLING = SETTINGS.model_copy(update={"train": TrainConfig(distill=Distillation())})


def revision(*rewards: Reward) -> RewardRevised:
    return RewardRevised(
        trajectory_id="t1", episode_id="e1", group_hint="h", revision=1, rewards=rewards, revised_at_ms=START_MS
    )


def hints(
    payload: Trajectory, named: dict[str, str], revised: RewardRevised | None = None, score: Score | None = None
) -> dict[str, str]:
    return dict(add_hints(inspect(payload), make_member("t1", hints=named), revised, score).hints)


def judged(hint: str = HINT, trajectory: str = "t1") -> Score:
    turn_id = make_payload(trajectory).turns[0].event_id
    turn = TurnReward(turn_event_id=turn_id, component="judge", event_id="r1", is_hint=True, hint=hint)
    return make_score(trajectory, 0.0, turn_rewards=(turn,))


def test_the_words_of_a_report_are_in_the_revision_or_in_the_trajectory() -> None:
    payload = make_payload("t1")
    assert hints(payload, {TURN.event_id: "r1"}, revision(REPORT)) == {TURN.event_id: WORDS}
    assert hints(replace(payload, rewards=(REPORT,)), {TURN.event_id: "r1"}) == {TURN.event_id: WORDS}


def test_words_removed_by_retention_are_not_a_hint() -> None:
    assert hints(make_payload("t1"), {TURN.event_id: "r1", "no such turn": ""}) == {}


def test_a_judges_own_words_come_before_the_users() -> None:
    payload, named = make_payload("t1"), {TURN.event_id: "r1"}
    assert hints(payload, named, revision(REPORT), judged()) == {TURN.event_id: HINT}
    assert hints(payload, named, revision(REPORT), judged("")) == {TURN.event_id: WORDS}
    assert hints(payload, {}, revision(REPORT), judged()) == {}


def test_a_score_that_retention_removed_leaves_the_users_words() -> None:
    assert hints(make_payload("t1"), {TURN.event_id: "r1"}, revision(REPORT), None) == {TURN.event_id: WORDS}


def test_words_within_a_trajectory_are_the_users_next_message() -> None:
    reply = replace(TURN, event_id="turn-2", added_messages=(Message(role="user", content=WORDS),))
    assert hints(make_payload("t1", turns=(TURN, reply)), {TURN.event_id: ""}) == {TURN.event_id: WORDS}


def test_without_a_message_the_error_of_the_tool_is_the_hint() -> None:
    calls: dict[str, Any] = {"completion": replace(TURN.completion, tool_calls='[{"id": "c1"}]')}
    tool = ToolResult(event_id="x", name="look_up", tool_call_id="c1", error="no such order", occurred_at_ms=START_MS)
    payload = make_payload("t1", turns=(replace(TURN, **calls),), tools=(tool,))
    assert hints(payload, {TURN.event_id: ""}) == {TURN.event_id: "no such order"}


def test_the_error_of_a_tool_is_a_hint_for_the_turn_that_called_it_alone() -> None:
    calls = '[{"id": "call_10", "function": {"name": "look_up", "arguments": "{\\"of\\": \\"call_1\\"}"}}]'
    turn = replace(TURN, completion=replace(TURN.completion, tool_calls=calls))
    tool = ToolResult(event_id="x", name="look_up", tool_call_id="call_1", error="gone", occurred_at_ms=START_MS)
    assert hints(make_payload("t1", turns=(turn,), tools=(tool,)), {TURN.event_id: ""}) == {}


def test_the_door_lets_a_turn_through_with_its_hint_and_its_own_advantage() -> None:
    named = {TURN.event_id: "r1"}
    members = (make_member("t1", 0.0, advantage=-0.5, hints=named), make_member("t2", 1.0, advantage=0.5))
    payloads = {
        "t1": add_hints(inspect(make_payload("t1")), members[0], revision(REPORT)),
        "t2": inspect(make_payload("t2")),
    }
    batch = make_batch(0, [make_group("g", (0.0, 1.0), members=members)])
    result = check_batch(batch, payloads, lags={0: 0}, excluded=(), rules=DoorRules(4, 100))
    assert [{turn.hint for turn in trajectory.turns} for trajectory in result.admitted] == [{WORDS}, {""}]
    assert [trajectory.advantages for trajectory in result.admitted] == [(-0.5, -0.5), (0.5, 0.5)]


class Watching(MemoryBackend):
    """Says that it distills, notes what it is sent, and trains without hints."""

    async def capabilities(self) -> Capabilities:
        return replace(await super().capabilities(), distills=True)

    async def train(self, request: TrainRequest) -> None:
        self.sent = [turn.hint for trajectory in request.trajectories for turn in trajectory.turns]
        await super().train(replace(request, config=TrainConfig()))


async def test_a_trainer_that_distills_reads_the_words_where_the_revision_is() -> None:
    backend = Watching()
    world = World(backend=backend, settings=DISTILLING)
    group = world.stored("g", (0.0, 1.0))
    said_at = world.broker.append(TRAJECTORIES, revision(REPORT))
    corrected = replace(group.members[0], hints={make_payload("g-0").turns[0].event_id: "r1"}, revised_at=said_at)
    world.broker.append(BATCHES, make_batch(0, [replace(group, members=(corrected, *group.members[1:]))]))
    await world.trainer().run(until_idle=True)
    assert backend.sent == [WORDS, WORDS, "", ""]


async def test_a_trainer_that_distills_reads_a_judges_words_where_the_score_is() -> None:
    backend = Watching()
    world = World(backend=backend, settings=DISTILLING)
    group = world.stored("g", (0.0, 1.0))
    hints_at = world.broker.append(SCORES, judged(trajectory="g-0"))
    other_at = world.broker.append(SCORES, judged("Of another case.", trajectory="elsewhere"))
    hinted, plain = (
        replace(member, hints={make_payload(member.trajectory_id).turns[0].event_id: "r1"}, hints_at=place)
        for member, place in zip(group.members, (hints_at, other_at), strict=True)
    )
    world.broker.append(BATCHES, make_batch(0, [replace(group, members=(hinted, plain))]))
    await world.trainer().run(until_idle=True)
    assert backend.sent == [HINT, HINT, "", ""]


async def test_distilling_refuses_a_backend_without_log_probs_at_the_start() -> None:
    world = World(settings=DISTILLING)
    with pytest.raises(ConfigurationError, match=r"memory backend .* no log-probs of a prompt with a hint.*distill"):
        await world.train(1)
