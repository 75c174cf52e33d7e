"""A small world for the plugin: examples, an endpoint on loopback that counts, and the bus in memory."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml
from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInput, EvalInputItem, EvaluatorBaseConfig
from nat.data_models.finetuning import FinetuneRunConfig, TrainingJobStatus
from nat.data_models.function import FunctionBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutput, EvalOutputItem

from rollbus.nemo.bus.run_log import RunLog
from rollbus.nemo.configuration import load_plan
from rollbus.nemo.finetune import Components, components
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.run import CURRENT, Run
from rollbus.nemo.runs.run_recording import RunRecording
from rollbus.nemo.runs.settings import settings_of
from rollbus.nemo.trainer import BusTrainer
from rollbus.settings import Settings
from rollbus.trainer.backends.protocol import Backend
from tests.finetuning import art_adapter, art_builder, configuration
from tests.nemo.bus_memory import MemoryBus
from tests.web import QuietHandler, serve

RUN = "art-run-test"


class Endpoint:
    """Answers as an endpoint with token ids does; the n-th answer to a question says n."""

    def __init__(self, *, with_tokens: bool = True) -> None:
        self.requests: list[dict[str, Any]] = []
        self.with_tokens = with_tokens
        self.version = 0
        self.before: Callable[[dict[str, Any]], None] = lambda request: None
        self._lock = threading.Lock()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
            question = str(request["messages"][-1]["content"])
            seen = sum(str(earlier_request["messages"][-1]["content"]) == question for earlier_request in self.requests)
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": str(seen)},
        }
        if self.with_tokens:
            token: dict[str, Any] = {"token": "t", "bytes": None, "logprob": -0.5, "top_logprobs": []}
            choice |= {"logprobs": {"content": [token], "refusal": None}, "token_ids": [seen]}
            choice["prompt_token_ids"] = [ord(letter) for letter in question]
        return {
            "id": f"answer-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": f"{request['model']}@{self.version}",
            "usage": {"prompt_tokens": len(question), "completion_tokens": 1, "total_tokens": len(question) + 1},
            "choices": [choice],
        }

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve on loopback; yield the address."""
        endpoint = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = self.read_json()
                endpoint.before(request)
                answer = endpoint.answer(request)
                if request.get("stream"):
                    self.answer_in_pieces(answer)
                else:
                    self.answer(answer)

            def answer_in_pieces(self, whole: dict[str, Any]) -> None:
                choice = {name: value for name, value in whole["choices"][0].items() if name != "finish_reason"}
                choice["delta"] = choice.pop("message")
                last = {"index": 0, "delta": {}, "finish_reason": "stop"}
                shared = {**whole, "object": "chat.completion.chunk", "usage": None}
                end = {**shared, "choices": [], "usage": whole["usage"]}
                pieces = [{**shared, "choices": [choice]}, {**shared, "choices": [last]}, end]
                text = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces)
                self.answer_text(f"{text}data: [DONE]\n\n", "text/event-stream")

        with serve(Handler) as address:
            yield f"{address}/v1"


class Steady(Endpoint):
    """Answers a question in the same way at any time, if the request's `seed` is the same."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super().answer(request)
        digit = crc32(f"{request['messages'][-1]['content']} {request.get('seed')}".encode()) % 10
        answer["choices"][0]["message"]["content"] = str(digit)
        answer["choices"][0]["token_ids"] = [digit]
        return answer


Ask = Callable[[str, Any], Any]
WORKFLOWS: dict[str, Ask] = {}
"""By the workflow's `how`: what it does with a question and a LangChain model."""
SCORES: dict[str, Callable[[EvalInputItem], Any]] = {}
"""By the evaluator's `how`: an item's score, or its whole EvalOutputItem."""


class AskConfig(FunctionBaseConfig, name="test_ask"):
    llm: str
    how: str = "ask"


class ScoreConfig(EvaluatorBaseConfig, name="test_score"):
    how: str = "parity"


@register_function(config_type=AskConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def ask_workflow(config: AskConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        return str(await WORKFLOWS[config.how](question, llm))

    yield FunctionInfo.from_fn(run)


@register_evaluator(config_type=ScoreConfig)
async def score_evaluator(config: ScoreConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(items: EvalInput) -> EvalOutput:
        scored_items = []
        for item in items.eval_input_items:
            score = SCORES[config.how](item)
            whole = (
                score if isinstance(score, EvalOutputItem) else EvalOutputItem(id=item.id, score=score, reasoning="")
            )
            scored_items.append(whole)
        return EvalOutput(average_score=None, eval_output_items=scored_items)

    yield EvaluatorInfo(config=config, evaluate_fn=evaluate, description="a test's")  # type: ignore[arg-type]  # as all of its own


async def ask(question: str, llm: Any) -> str:
    """The workflow: one question, one answer."""
    return str((await llm.ainvoke(question)).content)


def parity(item: EvalInputItem) -> float:
    """The reward: even answers are good."""
    return float(int(item.output_obj) % 2 == 0)


def document(
    tmp_path: Path, *, examples: int = 3, workflow: Ask = ask, score: Callable[[Any], Any] = parity, **finetuning: Any
) -> dict[str, Any]:
    """A whole configuration; the dataset is written next to it."""
    WORKFLOWS[workflow.__name__], SCORES[score.__name__] = workflow, score
    dataset = tmp_path / "train.json"
    dataset.write_text(json.dumps([{"id": f"e{n}", "question": f"question {n}"} for n in range(examples)]))
    plain = configuration(
        "http://127.0.0.1:9/v1",
        workflow="test_ask",
        evaluators={"good": {"_type": "test_score", "how": score.__name__}},
        dataset=dataset,
        builder=art_builder(2),
        adapter=art_adapter(9, "agent", learning_rate=1e-4, beta=0.25),
        folder=tmp_path,
        **finetuning,
    )
    plain["workflow"]["how"] = workflow.__name__
    return {**plain, "rollbus": {"settings": {"trainer": {"backend": {"type": "memory"}}}}}


def read(tmp_path: Path, plain: dict[str, Any]) -> Plan:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(plain))
    return load_plan(path)


def rows_in(path: Path, *without: str) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON, or of a JSON object a line, less some fields."""
    text = path.read_text()
    content = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    rows = content if isinstance(content, list) else [content]
    return [{name: value for name, value in row.items() if name not in without} for row in rows]


def memory_bus(plan: Plan, *, kind: type[MemoryBus] = MemoryBus, **options: Any) -> MemoryBus:
    """The bus of a configuration, with the settings that its real processes would have."""
    settings = Settings.model_validate(settings_of(plan, RUN, "test."))
    loop = settings.trainer_settings().model_copy(update={"retry_pauses_s": (), "batch_wait_s": 0.0})
    options.setdefault("folder", plan.config.finetuning.output_dir / "journal")
    return kind(settings.runs[0], assembly=settings.assembly, scoring=settings.scoring, settings=loop, **options)


@asynccontextmanager
async def opened(
    plan: Plan, bus: MemoryBus, model: Endpoint, *, resume: bool = False, plots: bool = False, **options: Any
) -> AsyncIterator[Components]:
    """The components of a run on the bus in memory, their model at the endpoint."""
    recording = RunRecording("test.", bus.sink)
    log = RunLog(bus, RUN, recording, stalled_s=120.0)
    await bus.open()
    await log.begin(resume=resume)

    async def host(backend: Backend) -> None:
        bus.backend = backend

    run = Run(plan, RUN, log, resume, host, bus.folder)
    CURRENT.set(run)
    with recording.instrumented(), model.served() as address:
        for llm in plan.config.llms.values():
            llm.base_url = address  # type: ignore[attr-defined]
        async with components(run, FinetuneRunConfig(**options)) as open_components:
            if isinstance(open_components.trainer, BusTrainer):
                open_components.trainer.plots = plots
            try:
                yield open_components
            finally:
                await log.close()


@asynccontextmanager
async def new_run(
    tmp_path: Path,
    plain: dict[str, Any] | None = None,
    model: Endpoint | None = None,
    *,
    backend: Backend | None = None,
    **options: Any,
) -> AsyncIterator[Components]:
    """The components of a configuration's one run, which is not opened again."""
    plan = read(tmp_path, plain or document(tmp_path))
    async with opened(plan, memory_bus(plan, backend=backend), model or Endpoint(), **options) as open_components:
        yield open_components


async def run_epochs(open_components: Components, epochs: int) -> Sequence[TrainingJobStatus]:
    assert isinstance(open_components.trainer, BusTrainer)
    return await open_components.trainer.run(epochs)
