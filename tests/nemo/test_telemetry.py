"""Each request of a workflow is an episode, through the toolkit's own runner and its own models."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from httpx import ASGITransport, AsyncClient
from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.builder.workflow_builder import WorkflowBuilder
from nat.cli.register_workflow import (
    register_eval_callback,
    register_evaluator,
    register_function,
)
from nat.data_models.config import Config
from nat.data_models.evaluate_runtime import EvaluationRunConfig
from nat.data_models.evaluator import EvalInput, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.front_ends.fastapi.fastapi_front_end_plugin_worker import FastApiFrontEndPluginWorker
from nat.plugins.eval.cli.evaluate import run_and_evaluate
from nat.plugins.eval.data_models.evaluator_io import EvalOutput, EvalOutputItem
from nat.runtime.session import SessionManager

from rollbus.nemo.configuration import _register_components
from rollbus.nemo.production.eval_scores import new_scores
from rollbus.producers import MemorySink
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    RewardReported,
    ToolCalled,
    TurnRecorded,
)
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.nemo.telemetry_parts import SINK, MemoryTelemetryConfig, serve_model
from tests.nemo.world import Endpoint, document, new_run, run_epochs
from tests.producers.integrations.agent_server import TOKENS, AgentServer
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks
SAMPLED_TOKENS = [TOKENS["tool"], TOKENS["final"]]
GUARDED = "the call itself goes on"
"""What is logged where the recording of something failed."""


class KeeperConfig(FunctionBaseConfig, name="test_keeper"):
    llm: str = "policy"
    framework: LLMFrameworkEnum = LLMFrameworkEnum.LANGCHAIN


@register_function(config_type=KeeperConfig)
async def keeper_workflow(config: KeeperConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=config.framework)
    tools: Any = await builder.get_tools(["stock"], wrapper_type=config.framework)

    async def run(input_message: str) -> str:
        if input_message == "fail":
            raise ValueError("no such shelf")
        if config.framework is LLMFrameworkEnum.LLAMA_INDEX:
            from llama_index.core.agent.workflow import FunctionAgent

            return str(await FunctionAgent(tools=tools, llm=llm, streaming=False).run(input_message))
        from langchain.agents import create_agent

        result = await create_agent(llm, tools=tools).ainvoke(
            {"messages": [{"role": "user", "content": input_message}]}
        )
        return str(result["messages"][-1].content)

    async def stream(input_message: str) -> AsyncGenerator[str, None]:
        async for chunk in llm.astream(input_message):
            yield str(chunk.content)

    yield FunctionInfo.create(single_fn=run, stream_fn=stream)


@asynccontextmanager
async def workflow(
    sink: MemorySink, *, framework: str = "langchain", sample_rate: float = 1.0
) -> AsyncIterator[SessionManager]:
    """A workflow as `nat run` and `nat serve` build it, with a tool, and a model that asks for it once."""
    SINK.append(sink)
    _register_components()
    with serve_model(AgentServer(tool="stock", arguments={"item": "bolts"})) as url:
        document = workflow_document(url)
        document["workflow"]["framework"] = framework
        document["general"]["telemetry"]["tracing"]["rollbus"]["sample_rate"] = sample_rate
        config = Config.model_validate(document)
        async with WorkflowBuilder.from_config(config) as builder:
            manager = await SessionManager.create(config, shared_builder=builder)
            try:
                yield manager
            finally:
                await manager.shutdown()


def workflow_document(url: str) -> dict[str, Any]:
    return {
        "general": {"telemetry": {"tracing": {"rollbus": {"_type": "test_rollbus"}}}},
        "llms": {"policy": {"_type": "openai", "model_name": "gpt-4o", "base_url": url, "api_key": "none"}},
        "functions": {"stock": {"_type": "test_stock"}},
        "workflow": {"_type": "test_keeper"},
    }


async def ask(manager: SessionManager, question: str, name: str) -> str:
    user, talk = f"user-{name}", f"talk-{name}"
    async with manager.session(user_id=user, conversation_id=talk) as session, session.run(question) as runner:
        return str(await runner.result(to_type=str))


def by_episode(sink: MemorySink) -> list[list[Event]]:
    """The events of each episode, in the order of their starts."""
    events = [event for event in sink.records("episode-events") if isinstance(event, Event)]
    ids = [event.episode_id for event in events if isinstance(event, EpisodeStarted)]
    assert {event.episode_id for event in events} == set(ids)
    return [[event for event in events if event.episode_id == episode_id] for episode_id in ids]


def turns_of(events: Sequence[Event]) -> list[TurnRecorded]:
    return [event for event in events if isinstance(event, TurnRecorded)]


def tokens_of(turn: TurnRecorded) -> tuple[list[int], list[float]]:
    assert turn.trainable, turn.untrainable_reason
    return list(decode_token_ids(turn.completion_token_ids or b"")), list(decode_logprobs(turn.logprobs or b""))


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
async def test_two_requests_of_two_calls_are_two_episodes_of_two_turns(framework: str) -> None:
    sink = MemorySink()
    async with workflow(sink, framework=framework) as manager:
        answers = await asyncio.gather(*(ask(manager, f"How many, {name}?", name) for name in ("ada", "bob")))
    assert answers == ["There are 7."] * 2
    episodes = by_episode(sink)
    assert len(episodes) == 2
    aliases = [record for record in sink.records("aliases") if isinstance(record, AliasDeclared)]
    talks = set()
    for events in episodes:
        start = next(event for event in events if isinstance(event, EpisodeStarted))
        assert start.task == "test_keeper"
        assert start.labels["user_id"].removeprefix("user-") == start.labels["conversation_id"].removeprefix("talk-")
        talks.add(start.labels["conversation_id"])
        names = {record.conversation: record.alias for record in aliases if record.episode_id == start.episode_id}
        talk = f"conversation:{start.labels['conversation_id']}"
        assert names == {True: talk, False: start.labels["workflow_run_id"]}, (
            "feedback may name the request by the toolkit's own id, and what a user says next is known by the talk's"
        )
        assert [tokens_of(turn) for turn in turns_of(events)] == SAMPLED_TOKENS
        assert [turn.function for turn in turns_of(events)] == ["<workflow>"] * 2
        (tool,) = (event for event in events if isinstance(event, ToolCalled))
        assert (tool.name, tool.result) == ("stock", "bolts: 7")
        assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["completed"]
    assert talks == {"talk-ada", "talk-bob"}


async def test_requests_after_one_another_in_one_task_are_apart() -> None:
    sink = MemorySink()
    async with workflow(sink) as manager:
        with pytest.raises(ValueError, match="no such shelf"):
            await ask(manager, "fail", "ada")
        try:
            raise KeyError("of the caller's own")
        except KeyError:
            await ask(manager, "How many?", "bob")
    failure, success = by_episode(sink)
    (ended,) = (event for event in failure if isinstance(event, EpisodeEnded))
    assert (ended.stop_reason, ended.error) == ("error", "ValueError: no such shelf")
    assert turns_of(failure) == []
    assert len(turns_of(success)) == 2
    assert [event.stop_reason for event in success if isinstance(event, EpisodeEnded)] == ["completed"]
    assert all(event.episode_id.count("/") == 0 for event in (failure[0], success[0])), "neither is a child"


@pytest.mark.parametrize("question", ["How many?", "fail"])
async def test_a_request_that_is_not_sampled_ends_once(question: str, caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink()
    async with workflow(sink, sample_rate=0.0) as manager:
        with suppress(ValueError):
            await ask(manager, question, "ada")
    assert by_episode(sink) == []
    assert GUARDED not in caplog.text


async def test_a_request_that_outlives_the_recorder_ends_once(caplog: pytest.LogCaptureFixture) -> None:
    sink = MemorySink()
    async with AsyncExitStack() as server:
        manager = await server.enter_async_context(workflow(sink))
        async with manager.session() as session, session.run("fail") as runner:
            await server.aclose()
            with pytest.raises(ValueError, match="no such shelf"):
                await runner.result()
    assert GUARDED not in caplog.text


async def test_a_streamed_answer_is_a_turn_of_its_request() -> None:
    sink = MemorySink()
    async with workflow(sink) as manager, manager.session() as session, session.run("How many?") as runner:
        chunks = [chunk async for chunk in runner.result_stream(to_type=str)]
    assert chunks
    (events,) = by_episode(sink)
    (turn,) = turns_of(events)
    assert (turn.streamed, tokens_of(turn)) == (True, TOKENS["tool"])
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["completed"]


@pytest.mark.parametrize("front_end", [{}, {"identity_header": "x-user"}])
async def test_a_streamed_request_has_the_labels_of_a_whole_one(
    front_end: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAT_CONFIG_FILE", str(tmp_path / "workflow.yml"))  # where the server's process is told it
    SINK.append(sink := MemorySink())
    _register_components()
    with serve_model(AgentServer(tool="stock", arguments={"item": "bolts"})) as url:
        document = workflow_document(url)
        document["general"]["front_end"] = {"_type": "fastapi", **front_end}
        app = FastApiFrontEndPluginWorker(Config.model_validate(document)).build_app()
        async with (
            app.router.lifespan_context(app),
            AsyncClient(transport=ASGITransport(app), base_url="http://t") as user,
        ):

            async def post(name: str, route: str) -> None:
                talk = {"conversation-id": f"talk-{name}", "user-message-id": f"message-{name}"}
                who = {"cookie": f"nat-session={name}", "x-user": name}
                answer = await user.post(route, json={"input_message": f"How many, {name}?"}, headers=talk | who)
                assert answer.status_code == 200, answer.text

            names = ("ada", "bob", "eve")
            await asyncio.gather(*(post(name, "/generate/stream") for name in names))
            await asyncio.gather(*(post(name, "/generate") for name in names))
    labels_by_talk: dict[str, list[dict[str, str]]] = {}
    for events in by_episode(sink):
        labels = next(dict(event.labels) for event in events if isinstance(event, EpisodeStarted))
        del labels["workflow_run_id"]
        labels_by_talk.setdefault(labels["conversation_id"], []).append(labels)
    assert labels_by_talk.keys() == {"talk-ada", "talk-bob", "talk-eve"}
    for streamed, whole in labels_by_talk.values():
        assert streamed == whole
        assert whole["user_id"]


async def score_items(config: EvaluatorBaseConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(items: EvalInput) -> EvalOutput:
        scores = {"a": 1.0, "b": 0.0, "c": None}
        outputs = [
            EvalOutputItem(id=item.id, score=scores.get(item.id, 1.0), reasoning="seen")
            for item in items.eval_input_items
        ]
        return EvalOutput(average_score=None, eval_output_items=outputs)

    yield EvaluatorInfo(config=config, evaluate_fn=evaluate, description="a test's")  # type: ignore[arg-type]


class TruthConfig(EvaluatorBaseConfig, name="test_truth"):
    pass


register_evaluator(config_type=TruthConfig)(score_items)
register_eval_callback(config_type=MemoryTelemetryConfig)(lambda config: new_scores())


async def test_an_evaluation_records_its_scores_as_rewards_and_its_result(tmp_path: Path) -> None:
    SINK.append(sink := MemorySink())
    _register_components()
    dataset = [{"id": name, "question": f"How many, {name}?", "answer": "7"} for name in "abc"]
    (tmp_path / "data.json").write_text(json.dumps(dataset))
    with serve_model(AgentServer(tool="stock", arguments={"item": "bolts"})) as url:
        document = evaluated_document(url, tmp_path)
        (tmp_path / "eval.yml").write_text(yaml.safe_dump(document))
        await run_and_evaluate(EvaluationRunConfig(config_file=tmp_path / "eval.yml"))
    episodes = by_episode(sink)
    worth = {}
    for events in episodes:
        question = turns_of(events)[0].added_messages[-1].content or ""
        rewards = [event for event in events if isinstance(event, RewardReported)]
        worth[question[-2]] = [(reward.name, reward.value, reward.source, reward.comment) for reward in rewards]
    assert worth == {"a": [("truth", 1.0, "evaluator", "seen")], "b": [("truth", 0.0, "evaluator", "seen")], "c": []}
    (evaluation,) = (record for record in sink.records("evaluations") if isinstance(record, Evaluation))
    assert (evaluation.name, evaluation.episodes, evaluation.metrics["score"]) == ("truth", 2, 0.5)
    (model,) = {(turn.model, turn.policy_version or 0) for events in episodes for turn in turns_of(events)}
    assert (evaluation.model, evaluation.policy_version) == (model[0].partition("@")[0], model[1])


@asynccontextmanager
async def served_workflow(
    document: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """The workflow as `nat serve` serves it; yields its address."""
    monkeypatch.setenv("NAT_CONFIG_FILE", str(folder / "workflow.yml"))
    app = FastApiFrontEndPluginWorker(Config.model_validate(document)).build_app()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started, "the workflow is not served")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


async def test_scores_of_a_service_behind_an_endpoint_are_rewards_of_its_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SINK.append(sink := MemorySink())
    _register_components()
    rows = [{"id": name, "question": f"How many, {name}?", "answer": "7"} for name in "abc"]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    with serve_model(AgentServer(tool="stock", arguments={"item": "bolts"})) as url:
        (tmp_path / "eval.yml").write_text(yaml.safe_dump(evaluated_document(url, tmp_path)))
        async with served_workflow(workflow_document(url), tmp_path, monkeypatch) as address:
            await run_and_evaluate(EvaluationRunConfig(config_file=tmp_path / "eval.yml", endpoint=address))
    records = sink.records("aliases")
    episode_ids = {record.alias: record.episode_id for record in records if isinstance(record, AliasDeclared)}
    reports = [record for record in records if isinstance(record, RewardReported)]
    questions = {turn.episode_id: turn.added_messages[-1].content for turn in turns_of(sink.records("episode-events"))}
    worth = {
        questions[episode_ids[report.alias or ""]]: (report.name, report.value, report.source) for report in reports
    }
    assert worth == {
        "How many, a?": ("truth", 1.0, "evaluator"),
        "How many, b?": ("truth", 0.0, "evaluator"),
    }


async def test_scores_of_examples_without_ids_of_their_own_reward_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SINK.append(sink := MemorySink())
    _register_components()
    (tmp_path / "data.json").write_text(json.dumps([{"question": f"How many, {name}?"} for name in "ab"]))
    with serve_model(AgentServer(tool="stock", arguments={"item": "bolts"})) as url:
        (tmp_path / "eval.yml").write_text(yaml.safe_dump(evaluated_document(url, tmp_path)))
        await run_and_evaluate(EvaluationRunConfig(config_file=tmp_path / "eval.yml"))
    events = [event for episode_events in by_episode(sink) for event in episode_events]
    assert not [event for event in events if isinstance(event, RewardReported)]
    assert "2 of 2 items of evaluator 'truth' count in no evaluation" in caplog.text


def evaluated_document(url: str, folder: Path) -> dict[str, Any]:
    """A workflow and an evaluator as `nat eval` reads them."""
    dataset = {"_type": "json", "file_path": str(folder / "data.json")}
    return workflow_document(url) | {
        "eval": {
            "general": {"output_dir": str(folder / "eval"), "dataset": dataset},
            "evaluators": {"truth": {"_type": "test_truth"}},
        },
    }


async def test_a_finetuning_run_records_its_own_episodes_alone(tmp_path: Path) -> None:
    plain = document(tmp_path, examples=1)
    plain["general"] = {"telemetry": {"tracing": {"rollbus": {"_type": "rollbus"}}}}
    async with new_run(tmp_path, plain, Endpoint()) as components:
        await run_epochs(components, 1)
        records = list(components.run.log.view.trajectories.values())
    assert [(record.trainable, len(record.turns)) for record in records] == [(True, 1)] * 2
