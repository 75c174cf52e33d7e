"""Users' own builders, adapters and trainers, as the guide on extending has them, on the bus in memory."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nat.data_models.finetuning import (
    EpisodeItem,
    EpisodeItemRole,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)

from rollbus.harness.outputs import count
from rollbus.harness.publishing import publications
from rollbus.schemas.records.trajectories import Trajectory as Record
from tests.harness import guide_components
from tests.harness.world import RUN, Endpoint, document, memory_bus, opened, read, run_epochs

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_backend"


def guide_builder(plain: dict[str, Any]) -> None:
    plain["trajectory_builders"]["b"] = {"_type": "my_traj_builder", "num_generations": 2}


async def test_all_three_of_the_guides_components_run_and_their_trajectories_are_on_the_bus(tmp_path: Path) -> None:
    plain = document(tmp_path)
    guide_builder(plain)
    plain["trainer_adapters"]["a"] = {
        "_type": "my_trainer_adapter",
        "backend": {"endpoint": "http://x", "api_key": "k"},
    }
    plain["trainers"]["t"] = {"_type": "my_trainer"}
    config = read(tmp_path, plain)
    async with opened(config, memory_bus(config), Endpoint()) as made:
        statuses = await made.trainer.run(2)
        await made.run.log.wait_for(lambda view: len(view.group_of) == 12, "all groups")
        view = made.run.log.view
    assert isinstance(made.adapter, guide_components.MyTrainerAdapter)
    assert [count(one) for one in made.adapter.submitted] == [6, 6]
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    hints = {record.group_hint for record in view.trajectories.values()}
    assert hints == {f"group:{RUN}/{epoch}/e{n}" for epoch in range(2) for n in range(3)}
    assert all(record.trainable for record in view.trajectories.values())


async def test_a_users_builder_trains_on_art_through_the_bus(tmp_path: Path) -> None:
    plain = document(tmp_path)
    guide_builder(plain)
    config = read(tmp_path, plain)
    async with opened(config, memory_bus(config), Endpoint()) as made:
        statuses = await run_epochs(made, 2)
        steps = list(made.run.log.view.completed.values())
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert [len(step.trained) for step in steps] == [6, 6]


@pytest.fixture
def beside_the_example() -> Iterator[None]:
    """The example's own folder is where its modules are looked for."""
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


async def test_the_example_of_another_trainer_writes_the_best_answers(tmp_path: Path, beside_the_example: None) -> None:
    plain = document(tmp_path)
    plain["trainer_adapters"]["a"] = {
        "_type": "best_of_adapter",
        "backend": {"folder": str(tmp_path / "files"), "keep_share": 0.5},
    }
    plain["rollbus"]["imports"] = ["backend"]
    config = read(tmp_path, plain)
    async with opened(config, memory_bus(config), Endpoint(with_tokens=False)) as made:
        (status,) = await run_epochs(made, 1)
    assert status.message == "3 conversations written"
    rows = [json.loads(line) for line in (tmp_path / "files" / "epoch-0.jsonl").read_text().splitlines()]
    assert [row["messages"][1]["content"] for row in rows] == ["2", "2", "2"], "even answers are the good ones"
    assert [row["messages"][0]["role"] for row in rows] == ["user"] * 3


async def test_the_curriculum_of_another_trainer_goes_on_after_a_restart(
    tmp_path: Path, beside_the_example: None
) -> None:
    plain = document(tmp_path, examples=10, curriculum_learning={"enabled": True, "expansion_interval": 1})
    plain["trainer_adapters"]["a"] = {"_type": "best_of_adapter", "backend": {"folder": str(tmp_path / "files")}}
    plain["rollbus"]["imports"] = ["backend"]
    config = read(tmp_path, plain)
    bus, endpoint = memory_bus(config), Endpoint()
    async with opened(config, bus, endpoint) as made:
        await run_epochs(made, 1)
    async with opened(config, bus, endpoint, resume=True) as made:
        state = made.trainer.get_curriculum_state()
    assert (state["current_percentile"], state["last_expansion_epoch"], len(state["included_groups"])) == (0.5, 0, 5)


def item(role: str, content: str, logprobs: Any = None) -> EpisodeItem:
    return EpisodeItem(role=EpisodeItemRole(role), content=content, logprobs=logprobs)


LOGPROBS = {"content": [{"logprob": -0.1}, {"logprob": -0.2}], "prompt_token_ids": [1, 2], "token_ids": [3, 4]}


def published(*episode: EpisodeItem, **fields: Any) -> Record:
    collection = TrajectoryCollection(
        trajectories=[[Trajectory(episode=list(episode), reward=1.0, metadata={"id": "e"}, **fields)]], run_id="r"
    )
    arguments: dict[str, Any] = {"run_id": RUN, "epoch": 3, "task": "t", "reward_name": "good", "now_ms": 5}
    (one,) = publications(collection, **arguments, model="m", policy_version=7)
    assert publications(collection, **arguments) == [], "what is published once is not published again"
    record: Record = one.record
    return record


def test_log_probs_with_token_ids_are_trained_as_sampled() -> None:
    record = published(item("user", "?"), item("assistant", "!", LOGPROBS))
    assert record.trainable
    (history,) = record.histories
    (span,) = history.spans
    assert (span.start, span.end, span.policy_version) == (2, 4, 7)
    assert (record.group_size, record.labels["epoch"], record.turns[0].model) == (1, "3", "m")


@pytest.mark.parametrize(
    ("logprobs", "reason"),
    [
        ({}, "no_logprobs"),
        ({"content": [{"logprob": -0.1}]}, "no_token_ids"),
        ({**LOGPROBS, "token_ids": [3]}, "length_mismatch"),
        ({**LOGPROBS, "content": [{"logprob": 0.5}, {"logprob": -1}]}, "invalid_logprobs"),
        ({**LOGPROBS, "content": [{"logprob": None}, {"logprob": -1}]}, "invalid_logprobs"),
    ],
)
def test_log_probs_that_cannot_be_trained_are_kept_with_their_reason(logprobs: Any, reason: str) -> None:
    record = published(item("user", "?"), item("assistant", "!", logprobs))
    assert (record.trainable, record.untrainable_reason) == (False, reason)
    assert record.turns[0].completion.content == "!"


def test_tool_messages_stay_tool_messages() -> None:
    call = EpisodeItem(role=EpisodeItemRole.TOOL, content="4", metadata={"tool_call_id": "call-1", "name": "add"})
    record = published(item("user", "?"), item("assistant", "", LOGPROBS), call, item("assistant", "4", LOGPROBS))
    (message,) = record.turns[1].added_messages
    assert (message.role, message.tool_call_id, message.name) == ("tool", "call-1", "add")


def test_shaped_rewards_are_part_of_what_a_trajectory_is_worth() -> None:
    record = published(item("user", "?"), item("assistant", "!", LOGPROBS), shaped_rewards=[0.25, 0.5])
    assert [(one.name, one.value) for one in record.rewards] == [
        ("good", 1.75),
        ("good.step", 0.25),
        ("good.step", 0.5),
    ]


def two(example: str | None = None, **fields: Any) -> list[Trajectory]:
    metadata = None if example is None else {"id": example}
    episode = [item("user", "?"), item("assistant", "!", LOGPROBS)]
    return [Trajectory(episode=episode, reward=reward, metadata=metadata, **fields) for reward in (0.0, 1.0)]


def records_of(*groups: list[Trajectory]) -> list[Record]:
    collection = TrajectoryCollection(trajectories=list(groups), run_id="r")
    found = publications(
        collection, run_id=RUN, epoch=0, task="t", reward_name="good", now_ms=5, model="m", policy_version=7
    )
    return [one.record for one in found]


def test_two_groups_of_one_example_are_two_groups() -> None:
    found = records_of(two("e"), two("e"), two("f"))
    assert len({one.trajectory_id for one in found}) == 6
    assert [one.group_hint for one in found[::2]] == [f"group:{RUN}/0/{name}" for name in ("e", "e#2", "f")]


def test_an_inner_list_is_one_group_whatever_ids_its_trajectories_carry() -> None:
    attempts = two()
    for number, attempt in enumerate(attempts):
        attempt.metadata = {"id": f"e-generation-{number}"}
    assert {one.group_hint for one in records_of(attempts)} == {f"group:{RUN}/0/e-generation-0"}


def test_an_episode_without_messages_is_kept_with_its_reason_and_costs_no_other() -> None:
    empty = Trajectory(episode=[], reward=0.0)
    found = records_of([empty, *two()])
    assert [one.untrainable_reason for one in found] == ["no_turns", None, None]


def test_tool_calls_are_json_whether_given_as_json_or_as_a_list() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    for given in (calls, json.dumps(calls)):
        asked = EpisodeItem(
            role=EpisodeItemRole.ASSISTANT, content="", logprobs=LOGPROBS, metadata={"tool_calls": given}
        )
        (turn,) = published(item("user", "?"), asked).turns
        assert json.loads(turn.completion.tool_calls or "") == calls
