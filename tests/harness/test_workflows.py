"""Each kind of workflow, dataset and evaluator, in an evaluation run of its own; nothing of it leaves the process."""

import asyncio
import csv
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollbus.harness import Builder, EvalInput, EvalOutput, EvaluationRun, EvaluationRunConfig, EvaluationRunOutput
from rollbus.harness.config_file import load_configuration
from rollbus.harness.configuration import DatasetConfig
from rollbus.harness.datasets import load_dataset
from rollbus.harness.endpoint import json_path, pick
from rollbus.harness.evaluation_run import Failed
from rollbus.harness.evaluators import BaseEvaluator, as_evaluator
from rollbus.harness.typed import EvaluatorConfig
from rollbus.schemas.errors import ConfigurationError, RejectedError
from tests.harness.world import document, read

ROWS = [{"id": "x", "question": "one?", "answer": "1"}, {"id": "y", "question": "two?", "answer": "2"}]


class ModelServer:
    """An OpenAI-compatible endpoint that answers with the last user message, token by token."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        said = _text(next(one["content"] for one in reversed(body["messages"]) if one["role"] == "user"))
        token: dict[str, Any] = {"token": "t", "bytes": None, "logprob": -0.5, "top_logprobs": []}
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": f"echo {said}"},
            "logprobs": {"content": [token], "refusal": None},
            "token_ids": [7],
            "prompt_token_ids": [1, 2, 3],
        }
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        shared = {"id": "a", "object": "chat.completion", "created": 0, "model": "m@3", "usage": usage}
        return web.json_response({**shared, "choices": [choice]})

    async def workflow(self, request: web.Request) -> web.Response:
        body = await request.json()
        headers = {"has_episode": "rollbus-episode" in request.headers}
        return web.json_response({"value": {"said": f"there {body['input_message']}"}, **headers})


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@asynccontextmanager
async def serving() -> AsyncIterator[ModelServer]:
    server, app = ModelServer(), web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/generate", server.workflow)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def evaluate(
    tmp_path: Path, workflow: dict[str, Any], url: str, *, llm: dict[str, Any] | None = None, **run: Any
) -> EvaluationRunOutput:
    plain = document(tmp_path)
    (tmp_path / "train.json").write_text(json.dumps(ROWS))
    plain["llms"]["policy"] = {"_type": "openai", "model_name": "m", "base_url": f"{url}/v1", "max_retries": 0}
    plain["llms"]["policy"] |= llm or {}
    plain["workflow"] = workflow
    plain["eval"]["evaluators"] = {"good": {"_type": "reward_function", "function": "exact_match"}}
    config = read(tmp_path, plain)
    async with Builder(config) as builder:
        return await EvaluationRun(EvaluationRunConfig(config_file=config, **run), builder).run_and_evaluate()


def lang_graph(model: Any) -> Any:
    from langgraph.graph import END, START, MessagesState, StateGraph

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("model", ask)
    made.add_edge(START, "model")
    made.add_edge("model", END)
    return made.compile()


def llama_agent(model: Any) -> Any:
    from llama_index.core.agent.workflow import FunctionAgent

    return FunctionAgent(tools=[], llm=model, streaming=False)


def adk_agent(model: Any) -> Any:
    from google.adk.agents import LlmAgent

    return LlmAgent(name="echo", model=model, instruction="echo")


async def plain_python(question: str, llm: Any) -> str:
    answer = await llm.chat([{"role": "user", "content": question}])
    return answer.choices[0].message.content or ""


def own_rule(question: str, options: dict[str, Any]) -> str:
    return str(options["answers"][question])


of_each_framework = pytest.mark.parametrize(
    "workflow",
    [
        {"_type": "python", "function": f"{__name__}:plain_python", "llm": "policy"},
        {"_type": "langgraph", "graph": f"{__name__}:lang_graph", "llm": "policy"},
        {"_type": "llama_index", "agent": f"{__name__}:llama_agent", "llm": "policy"},
        {"_type": "adk", "agent": f"{__name__}:adk_agent", "llm": "policy"},
    ],
    ids=lambda one: str(one["_type"]),
)


@of_each_framework
@pytest.mark.filterwarnings("ignore")  # of the frameworks
async def test_an_agent_of_each_framework_runs_and_its_calls_are_recorded(
    tmp_path: Path, workflow: dict[str, Any]
) -> None:
    async with serving() as server:
        output = await evaluate(tmp_path, workflow, server.url)
    items = output.eval_input.eval_input_items
    assert [item.output_obj for item in items] == ["echo one?", "echo two?"]
    for item in items:
        ends = [step for step in item.trajectory if step.event_type == "LLM_END"]
        assert [step.logprobs["token_ids"] for step in ends] == [[7]]
        assert ends[0].logprobs["policy_version"] == 3


@of_each_framework
@pytest.mark.filterwarnings("ignore")  # of the frameworks
async def test_what_an_entry_under_llms_says_of_sampling_reaches_the_request(
    tmp_path: Path, workflow: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "seed": 4, "stop": ["."], "frequency_penalty": 0.5}
    async with serving() as server:
        await evaluate(tmp_path, workflow, server.url, llm={**sampling, "verify_ssl": True})
    limit = {name for name in ("max_tokens", "max_completion_tokens") if name in server.asked[0]}
    assert {name: server.asked[0].get(name) for name in sampling if name != "max_tokens"} == {
        name: value for name, value in sampling.items() if name != "max_tokens"
    }
    assert [server.asked[0][name] for name in limit] == [9]
    assert "llms: 'verify_ssl' is not a parameter of a chat completion" in caplog.text


async def test_a_sync_function_gets_its_options(tmp_path: Path) -> None:
    workflow = {
        "_type": "python",
        "function": f"{__name__}:own_rule",
        "options": {"answers": {"one?": "1", "two?": "wrong"}},
    }
    output = await evaluate(tmp_path, workflow, "http://127.0.0.1:9")
    (name, found), *_ = output.evaluation_results
    assert name == "good"
    assert [item.score for item in found.eval_output_items] == [1.0, 0.0]
    assert found.average_score == 0.5
    assert output.workflow_output_file is not None
    assert json.loads(output.workflow_output_file.read_text())[0]["output_obj"] == "1"


async def test_repetitions_are_examples_of_their_own(tmp_path: Path) -> None:
    workflow = {"_type": "python", "function": f"{__name__}:shout"}
    output = await evaluate(tmp_path, workflow, "http://127.0.0.1:9", reps=2, write_output=False)
    assert [item.id for item in output.eval_input.eval_input_items] == ["x_rep0", "y_rep0", "x_rep1", "y_rep1"]


async def test_what_an_evaluation_here_would_not_heed_is_refused(tmp_path: Path) -> None:
    workflow = {"_type": "python", "function": f"{__name__}:shout"}
    with pytest.raises(ConfigurationError, match="skip_workflow, num_passes cannot be set here"):
        await evaluate(tmp_path, workflow, "http://127.0.0.1:9", skip_workflow=True, num_passes=3)


async def test_an_endpoint_is_asked_with_the_episodes_headers(tmp_path: Path) -> None:
    async with serving() as server:
        workflow = {"_type": "http", "endpoint": f"{server.url}/generate", "result_json_path": "$.value.said"}
        output = await evaluate(tmp_path, workflow, server.url)
        flagged = await evaluate(
            tmp_path, workflow, server.url, endpoint=f"{server.url}/generate", result_json_path="$.has_episode"
        )
    assert [item.output_obj for item in output.eval_input.eval_input_items] == ["there one?", "there two?"]
    assert [item.output_obj for item in flagged.eval_input.eval_input_items] == [True, True]


async def test_an_example_whose_workflow_fails_has_no_score(tmp_path: Path) -> None:
    workflow = {"_type": "python", "function": f"{__name__}:own_rule", "options": {"answers": {"two?": "2"}}}
    output = await evaluate(tmp_path, workflow, "http://127.0.0.1:9")
    first, second = output.evaluation_results[0][1].eval_output_items
    assert (first.score, second.score) == (None, 1.0)
    assert "KeyError" in (first.error or "")
    assert isinstance(output.eval_input.eval_input_items[0].output_obj, Failed)


def write_rows(path: Path) -> None:
    kind = path.suffix
    if kind == ".json":
        path.write_text(json.dumps(ROWS))
    elif kind == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif kind == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv", "parquet"])
def test_every_form_of_a_dataset_gives_the_same_examples(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{ending}"
    write_rows(path)
    examples = load_dataset(DatasetConfig(file_path=path))
    assert [(one.id, one.input, one.expected) for one in examples] == [("x", "one?", "1"), ("y", "two?", "2")]
    assert examples[0].entry == ROWS[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "has no examples"),
        ("{}", "a list of examples is expected"),
        ("nonsense", "cannot be read as json"),
        ('[{"id": 1}, {"id": 1}]', "two examples have the id '1'"),
    ],
)
def test_a_dataset_that_cannot_be_used_says_why(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_dataset(DatasetConfig(file_path=path))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"structure": {"question_key": "prompt"}}, "example 0 has no 'prompt', the configured question_key; it has "),
        ({"structure": {"answer_key": "label"}}, "no example has 'label', the configured answer_key"),
        ({"id_key": "uid"}, "example 0 has no 'uid', the configured id_key; it has id, question, answer"),
    ],
)
def test_a_key_that_is_configured_must_be_there(named: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_rows(path)
    with pytest.raises(ConfigurationError, match=message):
        load_dataset(DatasetConfig.model_validate({"file_path": path, **named}))


def test_keys_that_are_not_configured_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"board": "x"}]')
    (example,) = load_dataset(DatasetConfig(file_path=path))
    assert (example.id, example.input, example.expected) == ("0", {"board": "x"}, None)


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv"])
def test_a_byte_order_mark_is_part_of_no_key(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{ending}"
    write_rows(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [one.id for one in load_dataset(DatasetConfig(file_path=path))] == ["x", "y"]


def test_an_unknown_ending_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="json, jsonl, csv, parquet"):
        load_dataset(DatasetConfig(file_path=tmp_path / "rows.txt"))


def test_a_json_path_is_followed() -> None:
    assert json_path("$") == ()
    assert json_path("$.choices[0].text") == ("choices", 0, "text")
    assert pick({"choices": [{"text": "x"}]}, json_path("$.choices[0].text")) == "x"
    with pytest.raises(RejectedError, match="has no 'other'"):
        pick({}, json_path("$.other"))
    with pytest.raises(ConfigurationError, match=r"must begin with \$"):
        json_path("value")


class Length(BaseEvaluator):
    async def evaluate_item(self, item: Any) -> Any:
        from rollbus.harness import EvalOutputItem

        return EvalOutputItem(id=item.id, score=len(item.output_obj))


async def test_evaluators_come_in_three_forms() -> None:
    from rollbus.harness import EvalInputItem

    item = EvalInputItem(id=1, input_obj="?", output_obj="four")

    async def whole(given: EvalInput) -> EvalOutput:
        return await Length().evaluate(given)

    def one(item: EvalInputItem) -> float:
        return float(len(item.output_obj))

    for made in (Length(), whole, one):
        assert (await as_evaluator(made, EvaluatorConfig()).evaluate_item(item)).score == 4


async def test_an_evaluator_that_raises_gives_no_score_and_its_reason() -> None:
    from rollbus.harness import EvalInputItem

    def broken(item: EvalInputItem) -> float:
        raise ValueError("cannot say")

    found = await as_evaluator(broken, EvaluatorConfig()).evaluate_item(EvalInputItem(id=1, input_obj="?"))
    assert (found.score, found.error) == (None, "ValueError: cannot say")


class Picky(BaseEvaluator):
    """Has no score for some; says how many it was asked for at a time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.running, self.most = 0, 0

    async def evaluate_item(self, item: Any) -> Any:
        from rollbus.harness import EvalOutputItem

        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if item.id == 1:
            raise ValueError("cannot say")
        return EvalOutputItem(id=item.id, score=1.0)


async def test_an_evaluator_that_raises_for_one_example_scores_the_others_as_many_at_a_time_as_it_says() -> None:
    from rollbus.harness import EvalInputItem

    evaluator = Picky(max_concurrency=3)
    items = [EvalInputItem(id=number, input_obj="?") for number in range(9)]
    found = (await as_evaluator(evaluator, EvaluatorConfig()).evaluate(items)).eval_output_items
    assert [one.id for one in found] == list(range(9))
    assert [one.id for one in found if one.score is None] == [1]
    assert found[1].error == "ValueError: cannot say"
    assert evaluator.most == 3


@pytest.mark.parametrize("score", ["yes", {"a": 1}, float("nan"), float("inf"), [1.0]])
async def test_a_score_that_is_no_number_is_none_and_says_so(score: Any) -> None:
    from rollbus.harness import EvalInputItem

    def odd(item: EvalInputItem) -> Any:
        return score

    found = await as_evaluator(odd, EvaluatorConfig()).evaluate_item(EvalInputItem(id=1, input_obj="?"))
    assert found.score is None
    assert found.error is not None
    assert "is not a finite number" in found.error


async def test_rewards_of_steps_that_are_no_numbers_leave_no_score() -> None:
    from rollbus.harness import EvalInputItem, EvalOutputItem

    def odd(item: EvalInputItem) -> Any:
        return EvalOutputItem.model_validate({"id": item.id, "score": 1.0, "shaped_rewards": [0.5, "much"]})

    found = await as_evaluator(odd, EvaluatorConfig()).evaluate_item(EvalInputItem(id=1, input_obj="?"))
    assert (found.score, found.error) == (None, "shaped_rewards [0.5, 'much']: 'much' is not a finite number")


async def test_a_function_that_cannot_be_found_says_where_it_must_lie(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be next to the configuration file"):
        await evaluate(tmp_path, {"_type": "python", "function": "nowhere:run"}, "http://127.0.0.1:9")


async def test_validation_may_have_a_configuration_of_its_own(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    plain = document(other)
    plain["workflow"] = {"_type": "python", "function": f"{__name__}:shout"}
    read(other, plain)
    config = read(tmp_path, document(tmp_path))
    async with Builder(config) as builder:
        run = EvaluationRunConfig(config_file=other / "config.yml")
        output = await EvaluationRun(run, builder).run_and_evaluate()
    assert [item.output_obj for item in output.eval_input.eval_input_items] == ["2", "2", "2"]
    assert load_configuration(other / "config.yml", {}).workflow is not None


def shout(question: str) -> str:
    return "2"


async def test_an_endpoint_that_records_goes_on_with_the_episode(tmp_path: Path) -> None:
    from tests.harness.world import RUN, Endpoint, memory_bus, opened

    config, model = read(tmp_path, document(tmp_path)), Endpoint()
    async with serving_agent(model) as agent, opened(config, memory_bus(config), model, endpoint=agent.url) as made:
        agent.recorder = made.log.recording.recorder
        await made.builder.start_run(RUN, {"epoch": 0})
        collection = await made.builder.finalize(RUN, {"epoch": 0})
    assert collection.count() == 6
    episode: list[Any] = list(collection.trajectories[0][0].episode)
    assert [item.role.value for item in episode] == ["user", "assistant"]


class AgentServer:
    """An agent behind an address, as a service that records with rollbus."""

    def __init__(self, model: Any) -> None:
        self.model, self.url = model, ""
        self.recorder: Any = None

    async def answer(self, request: web.Request) -> web.Response:
        recorder = self.recorder
        question = (await request.json())["input_message"]
        client = recorder.wrap(self.model)
        with recorder.attach(request.headers), recorder.function("<workflow>"):
            messages = [{"role": "user", "content": question}]
            answer = await client.chat.completions.create(model="agent", messages=messages)
        return web.json_response(answer.choices[0].message.content)


@asynccontextmanager
async def serving_agent(model: Any) -> AsyncIterator[AgentServer]:
    server, app = AgentServer(model), web.Application()
    app.router.add_post("/agent", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/agent"
    try:
        yield server
    finally:
        await runner.cleanup()
