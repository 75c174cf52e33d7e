"""A small world for the harness: examples, a model that counts, an endpoint in memory, and the bus in memory."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from openai.types.chat import ChatCompletion

from rollbus.harness import Builder, FinetuneRunConfig, TrainingJobStatus
from rollbus.harness.art_trainer import ARTTrainer
from rollbus.harness.bus_memory import MemoryBus
from rollbus.harness.config_file import load_configuration
from rollbus.harness.configuration import Configuration
from rollbus.harness.evaluation_models import EvalInputItem
from rollbus.harness.finetune import Components, components
from rollbus.harness.recording import Recording
from rollbus.harness.run_log import RunLog
from rollbus.harness.run_settings import settings_of, trained_model
from rollbus.settings import Settings

RUN = "art-run-test"


class Endpoint:
    """Answers as an endpoint with token ids does; the n-th answer to a question says n."""

    def __init__(self, *, with_tokens: bool = True) -> None:
        self.asked: list[dict[str, Any]] = []
        self.with_tokens = with_tokens
        self.version = 0
        self.chat = self
        self.completions = self
        self.base_url = "http://memory/v1"

    async def create(self, **request: Any) -> ChatCompletion:
        self.asked.append(request)
        question = str(request["messages"][-1]["content"])
        seen = sum(str(one["messages"][-1]["content"]) == question for one in self.asked)
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": str(seen)},
        }
        answer: dict[str, Any] = {
            "id": f"answer-{len(self.asked)}",
            "object": "chat.completion",
            "created": 0,
            "model": f"{request['model']}@{self.version}",
            "usage": {"prompt_tokens": len(question), "completion_tokens": 1, "total_tokens": len(question) + 1},
        }
        if self.with_tokens:
            token: dict[str, Any] = {"token": "t", "bytes": None, "logprob": -0.5, "top_logprobs": []}
            choice |= {"logprobs": {"content": [token], "refusal": None}, "token_ids": [seen]}
            choice["prompt_token_ids"] = [ord(letter) for letter in question]
        return ChatCompletion.model_validate({**answer, "choices": [choice]})


async def ask(question: str, llm: Any) -> str:
    """The workflow: one question, one answer."""
    answer = await llm.chat([{"role": "user", "content": question}])
    return str(answer.choices[0].message.content)


def parity(item: EvalInputItem) -> float:
    """The reward: even answers are good."""
    return float(int(item.output_obj) % 2 == 0)


def document(tmp_path: Path, *, examples: int = 3, **finetuning: Any) -> dict[str, Any]:
    """A whole configuration; the dataset is written beside it."""
    dataset = tmp_path / "train.json"
    dataset.write_text(json.dumps([{"id": f"e{n}", "question": f"question {n}"} for n in range(examples)]))
    return {
        "llms": {"policy": {"_type": "openai", "model_name": "base", "base_url": "http://127.0.0.1:9/v1"}},
        "workflow": {"_type": "python", "function": "tests.harness.world:ask", "llm": "policy"},
        "eval": {
            "general": {
                "max_concurrency": 4,
                "output_dir": str(tmp_path / "eval"),
                "dataset": {"file_path": str(dataset)},
            },
            "evaluators": {"good": {"_type": "python", "function": "tests.harness.world:parity"}},
        },
        "trajectory_builders": {"b": {"_type": "openpipe_art_traj_builder", "num_generations": 2}},
        "trainer_adapters": {
            "a": {
                "_type": "openpipe_art_trainer_adapter",
                "backend": {"ip": "127.0.0.1", "port": 9, "name": "agent", "base_model": "base"},
                "training": {"learning_rate": 1e-4, "beta": 0.25},
            }
        },
        "trainers": {"t": {"_type": "openpipe_art_trainer"}},
        "finetuning": {
            "enabled": True,
            "trainer": "t",
            "trajectory_builder": "b",
            "trainer_adapter": "a",
            "reward_function": {"name": "good"},
            "output_dir": str(tmp_path / "output"),
            **finetuning,
        },
        "rollbus": {"settings": {"trainer": {"backend": {"type": "memory"}}}},
    }


def read(tmp_path: Path, plain: dict[str, Any]) -> Configuration:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(plain))
    return load_configuration(path, {})


def memory_bus(config: Configuration, **options: Any) -> MemoryBus:
    """The bus of a configuration, with the settings that its real processes would have."""
    settings = Settings.model_validate(settings_of(config, RUN, "test."))
    loop = settings.trainer_settings().model_copy(update={"retry_pauses_s": (), "batch_wait_s": 0.0})
    return MemoryBus(settings.runs[0], assembly=settings.assembly, scoring=settings.scoring, settings=loop, **options)


@asynccontextmanager
async def opened(
    config: Configuration, bus: MemoryBus, model: Endpoint, *, resume: bool = False, plots: bool = False, **run: Any
) -> AsyncIterator[Components]:
    """The components of a run on the bus in memory, their model in place of the configured one."""
    recording = Recording("test.", bus.sink)
    log = RunLog(bus, RUN, recording, stalled_s=2.0)
    await bus.open()
    await log.read_to_the_end()
    builder = Builder(config, recording=recording, trained=trained_model(config))
    await use(model, builder)
    run_config = FinetuneRunConfig(config_file=config, **run)
    async with builder, components(builder, log, run_config, resume=resume) as made:
        if isinstance(made.trainer, ARTTrainer):
            made.trainer.plots = plots
        try:
            yield made
        finally:
            await log.close()


async def use(endpoint: Endpoint, builder: Builder) -> None:
    """Put it in place of the client."""
    from dataclasses import replace

    assert builder.recording is not None
    for name in builder.config.llms:
        model = await builder.get_llm(name)
        client = builder.recording.recorder.wrap(endpoint)
        builder._made["llm", name] = replace(model, client=client)


async def run_epochs(made: Components, epochs: int) -> Sequence[TrainingJobStatus]:
    assert isinstance(made.trainer, ARTTrainer)
    return await made.trainer.run(epochs)
