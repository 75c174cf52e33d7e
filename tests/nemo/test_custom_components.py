"""Users' own builders, adapters and trainers, as the guide on extending has them, on the bus in memory."""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from nat.cli.register_workflow import register_trainer, register_trainer_adapter, register_trajectory_builder
from nat.data_models.finetuning import (
    EpisodeItem,
    EpisodeItemRole,
    TrainerAdapterConfig,
    TrainerConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)

from rollbus.nemo.bus.publish_trajectories import count, id_of
from rollbus.nemo.components import BusTrainerConfig, BusTrajectoryBuilderConfig
from rollbus.nemo.finetune import Components, concluded_well, untrained_epochs
from rollbus.nemo.own_parts.builder import put_on_log
from rollbus.nemo.runs.settings import settings_of
from rollbus.nemo.trainer import BusTrainer
from rollbus.nemo.trajectory_builder import BusTrajectoryBuilder
from rollbus.schemas.errors import RunStoppedError
from rollbus.schemas.records.trajectories import Trajectory as Record
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.trainer.ledger.log import Publication
from tests.nemo import guide_components
from tests.nemo.bus_memory import MemoryBus
from tests.nemo.world import RUN, Endpoint, document, memory_bus, new_run, opened, read, rows_in, run_epochs

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_backend"


GUIDE_ADAPTER = {"_type": "my_trainer_adapter", "backend": {"endpoint": "http://x", "api_key": "k"}}


def guide_builder(plain: dict[str, Any]) -> None:
    plain["trajectory_builders"]["b"] = {"_type": "my_traj_builder", "num_generations": 2}


def best_of(tmp_path: Path, plain: dict[str, Any], **backend: float) -> None:
    """Let the example's adapter train."""
    section = {"folder": str(tmp_path / "files"), **backend}
    plain["trainer_adapters"]["a"] = {"_type": "best_of_adapter", "backend": section}
    plain["rollbus"]["imports"] = ["backend"]


def own_document(
    tmp_path: Path, *, adapter: Any = None, trainer: str = "openpipe_art_trainer", **options: Any
) -> dict[str, Any]:
    """A configuration with the guide's builder, and with an adapter and a trainer of one's own where they are named."""
    plain = document(tmp_path, **options)
    guide_builder(plain)
    plain["trainers"]["t"]["_type"] = trainer
    if adapter is not None:
        plain["trainer_adapters"]["a"] = adapter
    return plain


async def test_the_guides_components_put_their_trajectories_on_the_bus(tmp_path: Path) -> None:
    async with new_run(tmp_path, own_document(tmp_path, adapter=GUIDE_ADAPTER, trainer="my_trainer")) as components:
        statuses = await components.trainer.run(2)
        await components.run.log.wait_for(lambda view: len(view.group_id_by_trajectory) == 12, "all groups")
        view = components.run.log.view
    assert isinstance(components.adapter, guide_components.MyTrainerAdapter)
    assert [count(collection) for collection in components.adapter.submitted] == [6, 6]
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    hints = {record.group_hint for record in view.trajectories.values()}
    assert hints == {f"group:{RUN}/{epoch}/e{n}" for epoch in range(2) for n in range(3)}
    assert all(record.trainable for record in view.trajectories.values())


async def test_a_users_builder_trains_on_art_through_the_bus(tmp_path: Path) -> None:
    async with new_run(tmp_path, own_document(tmp_path)) as components:
        statuses = await run_epochs(components, 2)
        steps = list(components.run.log.view.completed.values())
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert [len(step.trained) for step in steps] == [6, 6]


async def test_without_target_functions_each_trajectory_of_an_own_builder_trains(tmp_path: Path) -> None:
    async with new_run(tmp_path, own_document(tmp_path, target_functions=[])) as components:
        await run_epochs(components, 1)
        (step,) = components.run.log.view.completed.values()
    assert len(step.trained) == 6


@pytest.mark.parametrize(("field", "value"), [("min_episode_length", 3), ("include_tool_calls", False)])
async def test_the_fields_of_an_own_builder_ask_nothing_of_the_stages(tmp_path: Path, field: str, value: Any) -> None:
    plain = own_document(tmp_path, adapter=GUIDE_ADAPTER, trainer="my_trainer")
    plain["trajectory_builders"]["b"][field] = value
    async with new_run(tmp_path, plain) as components:
        statuses = await components.trainer.run(1)
        untrained = await untrained_epochs(components)
        assembly = settings_of(components.run.plan, RUN, "test.")["assembly"]
    assert isinstance(components.adapter, guide_components.MyTrainerAdapter)
    assert [count(collection) for collection in components.adapter.submitted] == [6], (
        "it has left out what it finds too short"
    )
    assert concluded_well(statuses, untrained)
    assert (assembly["min_episode_length"], assembly["include_tool_calls"]) == (1, True)


class ClientConfig(TrainerAdapterConfig, name="client_adapter"):
    pass


class ClientAdapter(guide_components.MyTrainerAdapter):
    """Holds a client, as the guide's does."""

    def __init__(self, adapter_config: Any) -> None:
        super().__init__(adapter_config)
        self.is_open = True

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        completed = await super().status(ref)
        return completed.model_copy(update={"metadata": {"checkpoint": None, "loss": 0.5}})


class ClosingConfig(TrainerConfig, name="closing_trainer"):
    pass


class ClosingTrainer(guide_components.MyTrainer):
    """Closes its adapter's client at the end, as the guide has it, and waits for no job."""

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        await self.run_epoch(0, "mine")
        done = TrainingStatusEnum.COMPLETED
        return [TrainingJobStatus(run_id="mine", backend="mine", status=done)]

    async def cleanup(self) -> None:
        assert isinstance(self.trainer_adapter, ClientAdapter)
        self.trainer_adapter.is_open = False


@register_trainer_adapter(config_type=ClientConfig)
async def client_adapter(config: ClientConfig, builder: Any) -> AsyncIterator[Any]:
    yield ClientAdapter(config)


@register_trainer(config_type=ClosingConfig)
async def closing_trainer(config: ClosingConfig, builder: Any) -> AsyncIterator[Any]:
    yield ClosingTrainer(config)


@pytest.mark.parametrize("trainer", ["closing_trainer", "openpipe_art_trainer"])
async def test_a_trainer_reaches_the_attributes_of_its_own_adapter(tmp_path: Path, trainer: str) -> None:
    plain = own_document(tmp_path, adapter={"_type": "client_adapter"}, trainer=trainer)
    async with new_run(tmp_path, plain) as components:
        assert isinstance(components.trainer.trainer_adapter, ClientAdapter)
        statuses = await components.trainer.run(1)
        assert not await untrained_epochs(components), "a job that no trainer waits for is waited for"
        assert len(components.run.log.view.completed) == 1
        assert set(components.run.log.view.checkpoints.values()) == {""}
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED]
    assert isinstance(components.adapter, ClientAdapter)
    assert components.adapter.is_open is (trainer != "closing_trainer")


async def test_an_untrained_epoch_of_a_users_trainer_is_named_with_its_reasons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = own_document(tmp_path, adapter=GUIDE_ADAPTER, trainer="my_trainer", target_model="other")
    plain["llms"]["other"] = dict(plain["llms"]["policy"], model_name="other")
    async with new_run(tmp_path, plain) as components:
        statuses = await components.trainer.run(2)
        assert not concluded_well(statuses, await untrained_epochs(components))
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert "nothing was trained in epoch 1, 2 (not_targeted" in caplog.text
    assert "): 12)" in caplog.text


class PickyConfig(guide_components.MyTrajectoryBuilderConfig, name="picky_builder"):
    pass


class Picky(guide_components.MyTrajectoryBuilder):
    """Leaves everything out, as the toolkit's own builder does with what has no log-probs."""

    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        self.evaluation_runs.pop(run_id)
        return TrajectoryCollection(trajectories=[], run_id=run_id)


@register_trajectory_builder(config_type=PickyConfig)
async def picky_builder(config: PickyConfig, builder: Any) -> AsyncIterator[Any]:
    yield Picky(config)


@pytest.mark.parametrize(
    ("with_tokens", "message"),
    [
        (True, r"No trajectories collected for epoch 1 \(6 episodes were recorded\)"),
        (False, r"No valid .* in epoch 1 \(6 episodes were recorded, none has token ids\)"),
    ],
)
async def test_recorded_episodes_are_named_when_an_own_builder_drops_them(
    tmp_path: Path, with_tokens: bool, message: str
) -> None:
    plain = own_document(tmp_path)
    plain["trajectory_builders"]["b"]["_type"] = "picky_builder"
    async with new_run(tmp_path, plain, Endpoint(with_tokens=with_tokens)) as components:
        with pytest.raises(RunStoppedError, match=message):
            await run_epochs(components, 1)


@pytest.fixture
def beside_the_example() -> Iterator[None]:
    """The example's own folder is where its modules are looked for."""
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


async def test_the_example_of_another_trainer_writes_the_best_answers(tmp_path: Path, beside_the_example: None) -> None:
    plain = document(tmp_path)
    best_of(tmp_path, plain, keep_share=0.5)
    async with new_run(tmp_path, plain, Endpoint(with_tokens=False)) as components:
        (status,) = await run_epochs(components, 1)
        view = components.run.log.view
    assert status.message == "3 conversations written"
    (step,) = view.completed.values()
    assert (len(step.trained), step.policy_version) == (6, 1), "its job is a step of the ledger"
    assert set(view.group_id_by_trajectory) == {member.trajectory_id for member in step.trained}
    rows = rows_in(tmp_path / "files" / "epoch-0.jsonl")
    assert [row["messages"][1]["content"] for row in rows] == ["2", "2", "2"], "even answers are the good ones"
    assert [row["messages"][0]["role"] for row in rows] == ["user"] * 3


def item(role: str, content: str, logprobs: Any = None) -> EpisodeItem:
    return EpisodeItem(role=EpisodeItemRole(role), content=content, logprobs=logprobs)


LOGPROBS = {"content": [{"logprob": -0.1}, {"logprob": -0.2}], "prompt_token_ids": [1, 2], "token_ids": [3, 4],
            "temperature": 1.0}  # fmt: skip


async def records_of(tmp_path: Path, *groups: list[Trajectory]) -> list[Record]:
    """What the stages make of a collection, in its order; publishing it again changes nothing."""
    collection = TrajectoryCollection(trajectories=list(groups), run_id="r")
    async with new_run(tmp_path, own_document(tmp_path)) as components:
        await components.run.publish(collection, 3)
        await components.run.publish(collection, 3)
        records = components.run.log.view.trajectories
        ids = [str(id_of(member)) for group in collection.trajectories for member in group]
        await components.run.log.wait_for(
            lambda view: all(trajectory_id in view.trajectories for trajectory_id in ids), "the records"
        )
    assert sorted(records) == sorted(ids)
    return [records[trajectory_id] for trajectory_id in ids]


async def publish_episode(tmp_path: Path, *episode: EpisodeItem, **fields: Any) -> Record:
    trajectory = Trajectory(episode=list(episode), reward=1.0, metadata={"id": "e"}, **fields)
    (record,) = await records_of(tmp_path, [trajectory])
    return record


async def test_log_probs_with_token_ids_are_trained_as_sampled(tmp_path: Path) -> None:
    record = await publish_episode(tmp_path, item("user", "?"), item("assistant", "!", LOGPROBS))
    assert record.trainable
    (history,) = record.histories
    (span,) = history.spans
    assert (span.start, span.end, span.policy_version) == (2, 4, 0)
    assert (record.group_size, record.labels["epoch"], record.turns[0].model) == (1, "3", "agent@0")


@pytest.mark.parametrize(
    ("logprobs", "reason"),
    [
        ({}, "no_logprobs"),
        ({"content": [{"logprob": -0.1}]}, "no_token_ids"),
        ({**LOGPROBS, "token_ids": [3]}, "length_mismatch"),
        ({**LOGPROBS, "content": [{"logprob": 0.5}, {"logprob": -1}]}, "missing_logprobs"),
        ({**LOGPROBS, "content": [{"logprob": None}, {"logprob": -1}]}, "missing_logprobs"),
    ],
)
async def test_log_probs_that_cannot_be_trained_are_kept_with_their_reason(
    tmp_path: Path, logprobs: Any, reason: str
) -> None:
    record = await publish_episode(tmp_path, item("user", "?"), item("assistant", "!", logprobs))
    assert (record.trainable, record.untrainable_reason) == (False, reason)
    assert record.turns[0].completion.content == "!"


async def test_tool_messages_stay_tool_messages(tmp_path: Path) -> None:
    call = EpisodeItem(role=EpisodeItemRole.TOOL, content="4", metadata={"tool_call_id": "call-1", "name": "add"})
    record = await publish_episode(
        tmp_path, item("user", "?"), item("assistant", "", LOGPROBS), call, item("assistant", "4", LOGPROBS)
    )
    (message,) = record.turns[1].added_messages
    assert (message.role, message.tool_call_id, message.name) == ("tool", "call-1", "add")


async def test_shaped_rewards_are_part_of_what_a_trajectory_is_worth(tmp_path: Path) -> None:
    record = await publish_episode(
        tmp_path, item("user", "?"), item("assistant", "!", LOGPROBS), shaped_rewards=[0.25, 0.5]
    )
    assert sorted((reward.name, reward.value) for reward in record.rewards) == [
        ("good", 1.75),
        ("good.step", 0.25),
        ("good.step", 0.5),
    ]


def two(example: str | None = None, **fields: Any) -> list[Trajectory]:
    metadata = None if example is None else {"id": example}
    episode = [item("user", "?"), item("assistant", "!", LOGPROBS)]
    return [Trajectory(episode=episode, reward=reward, metadata=metadata, **fields) for reward in (0.0, 1.0)]


async def test_two_groups_of_one_example_are_two_groups(tmp_path: Path) -> None:
    records = await records_of(tmp_path, two("e"), two("e"), two("f"))
    assert len({trajectory_record.trajectory_id for trajectory_record in records}) == 6
    assert [trajectory_record.group_hint for trajectory_record in records[::2]] == [
        f"group:{RUN}/3/{name}" for name in ("e", "e#2", "f")
    ]


async def test_a_builders_own_trajectory_id_stays_its_own(tmp_path: Path) -> None:
    attempts = two("e")
    for attempt in attempts:
        attempt.metadata = {"id": "e", "trajectory_id": "mine"}
    records = await records_of(tmp_path, attempts)
    assert [(attempt.metadata or {})["trajectory_id"] for attempt in attempts] == ["mine", "mine"]
    assert len({record.trajectory_id for record in records}) == 2


async def test_a_collection_that_a_builder_gives_in_each_epoch_trains_in_each(tmp_path: Path) -> None:
    collection = TrajectoryCollection(trajectories=[two("e")], run_id="r")
    async with new_run(tmp_path, own_document(tmp_path)) as components:

        async def start_run(run_id: str, meta: Any = None) -> None:
            pass

        async def finalize(run_id: str, meta: Any = None) -> TrajectoryCollection:
            return collection

        components.builder.start_run, components.builder.finalize = start_run, finalize  # type: ignore[method-assign]
        put_on_log(components.builder, components.run)
        await run_epochs(components, 2)
        steps = list(components.run.log.view.completed.values())
    assert [len(step.trained) for step in steps] == [2, 2]


async def test_an_inner_list_is_one_group_for_any_ids(tmp_path: Path) -> None:
    attempts = two()
    for number, attempt in enumerate(attempts):
        attempt.metadata = {"id": f"e-generation-{number}"}
    assert {record.group_hint for record in await records_of(tmp_path, attempts)} == {f"group:{RUN}/3/e-generation-0"}


async def test_an_episode_without_messages_is_kept_with_its_reason(tmp_path: Path) -> None:
    empty = Trajectory(episode=[], reward=0.0)
    records = await records_of(tmp_path, [empty, *two()])
    assert [trajectory_record.untrainable_reason for trajectory_record in records] == ["no_turns", None, None]


async def test_tool_calls_are_json_whether_given_as_json_or_as_a_list(tmp_path: Path) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    for given in (calls, json.dumps(calls)):
        tool_request = EpisodeItem(
            role=EpisodeItemRole.ASSISTANT, content="", logprobs=LOGPROBS, metadata={"tool_calls": given}
        )
        (turn,) = (await publish_episode(tmp_path, item("user", "?"), tool_request)).turns
        assert json.loads(turn.completion.tool_calls or "") == calls


class WorthConfig(BusTrajectoryBuilderConfig, name="worth_builder"):
    how: str = "twice"


class Worth(BusTrajectoryBuilder):
    """Says what an attempt is worth: twice its score, or a word."""

    async def compute_reward(self, output_item: Any, meta: Any = None) -> Any:
        assert {"epoch", "run_id", "trainer_config", "generation"} <= meta.keys()
        how = self.trajectory_builder_config.how  # type: ignore[attr-defined]
        return 2 * output_item.score if how == "twice" else "good"


class FirstConfig(BusTrainerConfig, name="first_trainer"):
    pass


class First(BusTrainer):
    def apply_curriculum_learning(self, trajectory_collection: TrajectoryCollection, epoch: int) -> Any:
        return trajectory_collection.model_copy(update={"trajectories": trajectory_collection.trajectories[:1]})


@register_trajectory_builder(config_type=WorthConfig)
async def worth_builder(config: WorthConfig, builder: Any) -> AsyncIterator[Any]:
    yield Worth(config)


@register_trainer(config_type=FirstConfig)
async def first_trainer(config: FirstConfig, builder: Any) -> AsyncIterator[Any]:
    yield First(config)


async def test_a_subclass_says_what_an_attempt_is_worth(tmp_path: Path) -> None:
    plain = document(tmp_path)
    plain["trajectory_builders"]["b"]["_type"] = "worth_builder"
    async with new_run(tmp_path, plain) as components:
        await run_epochs(components, 1)
        groups = list(components.run.log.view.groups.values())
    assert [sorted(member.reward for member in group.members) for group in groups] == [[0.0, 2.0]] * 3


async def test_a_reward_that_is_not_a_number_names_the_method(tmp_path: Path) -> None:
    plain = document(tmp_path)
    plain["trajectory_builders"]["b"] |= {"_type": "worth_builder", "how": "word"}
    async with new_run(tmp_path, plain) as components:
        with pytest.raises(RunStoppedError, match=r"Worth\.compute_reward returned str; expected a number"):
            await run_epochs(components, 1)


class LaggingBus(MemoryBus):
    """Brings revisions to the scoring stage some looks later than other records to theirs."""

    revisions: tuple[Publication, ...] = ()
    looks = 0

    async def publish(self, publications: Sequence[Publication]) -> None:
        self.revisions += tuple(publication for publication in publications if publication.topic is TRAJECTORIES)
        await super().publish([publication for publication in publications if publication.topic is not TRAJECTORIES])

    async def poll(self) -> list[Any]:
        self.looks += bool(self.revisions)
        if self.looks > 5:
            self.looks, held_revisions, self.revisions = 0, self.revisions, ()
            await super().publish(held_revisions)
        return await super().poll()


async def revise_rewards(components: Components) -> None:
    """Give every attempt another reward, whose revision follows its trajectory."""
    log = components.run.log
    for record in log.view.trajectories.values():
        components.run.recording.recorder.feedback(episode=record.episode_id, reward=1.0, name="user")
    await components.run.recording.flush()
    await log.wait_for(lambda view: view.revisions.keys() == view.trajectories.keys(), "the revisions")


@pytest.mark.parametrize(
    ("kind", "is_revised"),
    [(MemoryBus, False), (LaggingBus, False), (MemoryBus, True)],
    ids=["at_once", "late", "revised"],
)
async def test_a_subclass_chooses_what_is_trained(tmp_path: Path, kind: type[MemoryBus], is_revised: bool) -> None:
    plain = document(tmp_path, curriculum_learning={"enabled": True, "initial_percentile": 1.0})
    plain["trainers"]["t"]["_type"] = "first_trainer"
    plan = read(tmp_path, plain)
    async with opened(plan, memory_bus(plan, kind=kind), Endpoint()) as components:
        finalize = components.builder.finalize

        async def finalize_and_revise(*arguments: Any) -> TrajectoryCollection:
            collection = await finalize(*arguments)
            if is_revised:
                await revise_rewards(components)
            return collection

        components.builder.finalize = finalize_and_revise  # type: ignore[assignment,method-assign]
        (status,) = await run_epochs(components, 1)
        (step,) = components.run.log.view.completed.values()
    assert (status.status, len(step.trained)) == (TrainingStatusEnum.COMPLETED, 2)
    assert [dropped.reason for dropped in step.dropped] == ["excluded"] * 4


@pytest.mark.parametrize(
    ("section", "key", "value", "reason"),
    [
        ("trajectory_builders", "min_episode_length", 4, "too_short"),
        ("finetuning", "target_functions", ["other"], "not_targeted"),
        ("finetuning", "target_model", "other", "not_targeted"),
    ],
)
async def test_a_users_adapter_gets_only_what_the_stages_keep(
    tmp_path: Path, section: str, key: str, value: Any, reason: str
) -> None:
    plain = document(tmp_path)
    plain["trainer_adapters"]["a"] = GUIDE_ADAPTER
    (plain[section] if section == "finetuning" else plain[section]["b"])[key] = value
    async with new_run(tmp_path, plain) as components:
        with pytest.raises(RunStoppedError, match=rf"No trajectories collected .*{reason}.*: 6"):
            await run_epochs(components, 1)
        assert isinstance(components.adapter, guide_components.MyTrainerAdapter)
        assert components.adapter.submitted == []


async def test_an_attempt_without_a_model_call_reaches_no_adapter(tmp_path: Path) -> None:
    async def silent_once(question: str, llm: Any) -> str:
        return "2" if question == "question 1" else str((await llm.ainvoke(question)).content)

    plain = document(tmp_path, workflow=silent_once)
    plain["trainer_adapters"]["a"] = GUIDE_ADAPTER
    async with new_run(tmp_path, plain) as components:
        (status,) = await run_epochs(components, 1)
        reasons = dict(components.run.log.view.count_drop_reasons(components.run.log.view.trajectory_ids_of(0), {}))
        assert isinstance(components.adapter, guide_components.MyTrainerAdapter)
        (given,) = components.adapter.submitted
    assert status.status is TrainingStatusEnum.COMPLETED
    assert [len(group) for group in given.trajectories] == [2, 2]
    assert all(member.episode for group in given.trajectories for member in group)
    assert [(reason.split()[0], number) for reason, number in reasons.items()] == [("no_turns", 2)]


class Buying(Endpoint):
    """Calls a tool, with an empty content as some servers write it, and then answers."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super().answer(request)
        if request["messages"][-1]["role"] != "tool":
            call = {"id": "call-1", "type": "function", "function": {"name": "price", "arguments": '{"item":"apple"}'}}
            answer["choices"][0]["message"] = {"role": "assistant", "content": "", "tool_calls": [call]}
        return answer


async def buy(question: str, llm: Any) -> str:
    """Ask, run the tool that the model calls, and answer with what it makes of the result."""
    messages = [HumanMessage(question), await llm.ainvoke(question)]
    call = messages[-1].tool_calls[0]
    return str((await llm.ainvoke([*messages, ToolMessage("4", tool_call_id=call["id"])])).content)


async def test_a_closed_epoch_is_read_again_as_its_builder_asks(tmp_path: Path) -> None:
    plain = document(tmp_path, examples=1, workflow=buy)
    plain["trajectory_builders"]["b"]["include_tool_calls"] = False
    plan = read(tmp_path, plain)
    bus = memory_bus(plan)
    async with opened(plan, bus, Buying()) as components:
        await run_epochs(components, 1)
    async with opened(plan, bus, Endpoint(), resume=True) as components:
        closed_epoch = components.run.closed_epoch(0)
    assert closed_epoch is not None
    roles = [[item.role.value for item in trajectory.episode] for trajectory in closed_epoch.trajectories[0]]  # type: ignore[union-attr]
    assert roles == [["user", "assistant", "assistant"]] * 2


async def test_a_tool_call_with_empty_content_is_one_message(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, examples=1, workflow=buy), Buying()) as components:
        await components.builder.start_run(RUN, {"epoch": 0})
        collection = await components.builder.finalize(RUN, {"epoch": 0})
        (record, _) = components.run.log.view.trajectories.values()
    assert len(record.turns) == 2
    roles = [[item.role.value for item in trajectory.episode] for trajectory in collection.trajectories[0]]  # type: ignore[union-attr]
    assert roles == [["user", "assistant", "tool", "assistant"]] * 2


async def test_a_resumed_run_with_own_parts_repeats_no_finished_epoch(tmp_path: Path, beside_the_example: None) -> None:
    plain = own_document(tmp_path)
    best_of(tmp_path, plain)
    plan = read(tmp_path, plain)
    bus, endpoint = memory_bus(plan), Endpoint()
    async with opened(plan, bus, endpoint) as components:
        await run_epochs(components, 2)
    metrics = tmp_path / "output" / "training_metrics.jsonl"
    before, request_count = metrics.read_text(), len(endpoint.requests)
    async with opened(plan, bus, endpoint, resume=True) as components:
        statuses = await run_epochs(components, 2)
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert len(endpoint.requests) == request_count
    assert metrics.read_text() == before
    rows = rows_in(metrics, "timestamp")
    metrics.unlink()
    async with opened(plan, bus, endpoint, resume=True) as components:
        await run_epochs(components, 2)
    assert len(endpoint.requests) == request_count
    assert len(list((tmp_path / "files").iterdir())) == 2, "nothing is submitted again"
    assert rows_in(metrics, "timestamp") == rows, "from the ledger"


class BrokenConfig(TrainerAdapterConfig, name="broken_adapter"):
    how: str = "raise"


class Broken(guide_components.MyTrainerAdapter):
    """Fails in the way that its configuration names."""

    async def submit(self, trajectories: TrajectoryCollection) -> Any:
        how = self.adapter_config.how  # type: ignore[attr-defined]
        if how == "raise":
            raise ValueError("no GPU is free")
        return "job-1" if how == "shape" else await super().submit(trajectories)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        return TrainingJobStatus(run_id="r", backend="b", status=TrainingStatusEnum.FAILED, message="out of disk")


@register_trainer_adapter(config_type=BrokenConfig)
async def broken_adapter(config: BrokenConfig, builder: Any) -> AsyncIterator[Any]:
    yield Broken(config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"ValueError: no GPU is free \(.*test_custom_components.py, line \d+, in submit\)"),
        ("shape", r"Broken.submit returned str; expected TrainingJobRef"),
        ("fail", r"the job was failed: out of disk"),
    ],
)
async def test_a_job_of_an_own_adapter_that_fails_is_on_the_ledger_with_its_cause(
    tmp_path: Path, how: str, message: str
) -> None:
    plain = document(tmp_path)
    plain["trainer_adapters"]["a"] = {"_type": "broken_adapter", "how": how}
    async with new_run(tmp_path, plain) as components:
        (status,) = await run_epochs(components, 2)
        ((failure,),) = components.run.log.view.failures.values()
    assert status.status is TrainingStatusEnum.FAILED
    assert re.search(message, status.message or "")
    assert re.search(message, failure.message)


@pytest.mark.parametrize("roles", [("assistant", "user"), ("user", "assistant", "assistant")])
async def test_messages_out_of_order_cost_their_trajectory_only(tmp_path: Path, roles: tuple[str, ...]) -> None:
    episode = [item(role, "!", LOGPROBS if role == "assistant" else None) for role in roles]
    wrong = Trajectory(episode=episode, reward=1.0, metadata={"id": "e"})
    async with new_run(tmp_path, own_document(tmp_path)) as components:
        given = TrajectoryCollection(trajectories=[[wrong, *two("e")]], run_id="r")
        kept_collection = await components.run.publish(given, 0)
        reasons = components.run.log.view.count_drop_reasons([str(id_of(wrong))], {})
    assert count(kept_collection) == 2
    assert [reason.split()[0] for reason in reasons] == ["excluded"]


async def test_log_probs_are_whole_where_the_endpoint_gives_no_token_ids(tmp_path: Path) -> None:
    plain = own_document(tmp_path, adapter=GUIDE_ADAPTER, examples=1)
    async with new_run(tmp_path, plain, WithoutIds()) as components:
        await components.builder.start_run(RUN, {"epoch": 0})
        collection = await components.builder.finalize(RUN, {"epoch": 0})
        (record, _) = components.run.log.view.trajectories.values()
    (_, answer) = collection.trajectories[0][0].episode
    assert isinstance(answer, EpisodeItem)
    logprobs: Any = answer.logprobs
    assert [logprob["logprob"] for logprob in logprobs["content"]] == [-0.5]
    assert "token_ids" not in logprobs
    assert (record.trainable, record.untrainable_reason) == (False, "no_token_ids")


class WithoutIds(Endpoint):
    """Answers with log-probs and without token ids, as OpenAI does."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super().answer(request)
        for name in ("token_ids", "prompt_token_ids"):
            del answer["choices"][0][name]
        return answer


async def test_a_resumed_run_with_three_own_parts_repeats_no_finished_epoch(tmp_path: Path) -> None:
    plan = read(tmp_path, own_document(tmp_path, adapter=GUIDE_ADAPTER, trainer="my_trainer"))
    bus, endpoint = memory_bus(plan), Endpoint()
    async with opened(plan, bus, endpoint) as components:
        await components.trainer.run(1)
    assert len(endpoint.requests) == 6
    async with opened(plan, bus, endpoint, resume=True) as components:
        statuses = await components.trainer.run(2)
        assert isinstance(components.adapter, guide_components.MyTrainerAdapter)
        submitted = components.adapter.submitted
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert len(endpoint.requests) == 12, "the second epoch alone is played"
    assert [count(collection) for collection in submitted] == [6], "and submitted"


class GoneError(Exception):
    """The process is gone."""


async def test_the_logged_trajectories_of_an_earlier_process_count(tmp_path: Path, beside_the_example: None) -> None:
    async def lose_epoch(epoch: int) -> None:
        raise GoneError

    plain = own_document(tmp_path)
    best_of(tmp_path, plain, keep_share=0.5)
    plan = read(tmp_path, plain)
    bus, endpoint = memory_bus(plan), Endpoint()
    async with opened(plan, bus, endpoint) as components:
        components.run.log.end_epoch = lose_epoch  # type: ignore[method-assign]  # every attempt is on the log, the window is open
        with pytest.raises(GoneError):
            await run_epochs(components, 1)
    async with opened(plan, bus, endpoint, resume=True) as components:
        await run_epochs(components, 1)
        episodes = {
            trajectory.turns[0].completion.content for trajectory in components.run.log.view.trajectories.values()
        }
    assert episodes == {"1", "2"}, "the second process' answers were 3 and 4"
    rows = rows_in(tmp_path / "files" / "epoch-0.jsonl")
    assert [row["messages"][1]["content"] for row in rows] == ["2", "2", "2"]


def test_models_are_filtered_by_the_names_that_scores_have(tmp_path: Path) -> None:
    plain = own_document(tmp_path, adapter=GUIDE_ADAPTER, trainer="my_trainer")
    for llm in plain["llms"].values():
        llm["model_name"] = "claude-3-5-sonnet@20240620"
    run = settings_of(read(tmp_path, plain), RUN, "test.")["runs"][0]
    assert run["filter"]["models"] == ["agent", "claude-3-5-sonnet"]
