"""The examples as they stand: their configurations are read, and the tool-using agent uses its tool."""

import json
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from nat.data_models.evaluate_runtime import EvaluationRunConfig
from nat.plugins.eval.runtime.evaluate import EvaluationRun

from rollbus.nemo.checks import _count_examples
from rollbus.nemo.configuration import load_plan
from tests.web import QuietHandler, serve

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted((ROOT / "examples").glob("**/config.yml"))


@pytest.fixture
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Paths in the examples are those of a checkout."""
    monkeypatch.chdir(ROOT)
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name)
def test_every_examples_configuration_and_dataset_can_be_read(
    path: Path, at_the_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (package := path.parent / "pyproject.toml").exists():  # it is installed, and run in its own folder
        monkeypatch.chdir(path.parent)
        monkeypatch.syspath_prepend(path.parent)
        for module in tomllib.loads(package.read_text())["project"]["entry-points"]["nat.components"].values():
            import_module(module)
    config = load_plan(path).config
    assert config.finetuning.enabled
    assert _count_examples(config, None)


class ToolCaller(QuietHandler):
    """Calls the tool with the item that was asked about, then repeats what it said; streamed, as the agent asks."""

    def do_POST(self) -> None:
        messages = self.read_json()["messages"]
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if messages[-1]["role"] == "tool":
            message["content"] = f"It costs {messages[-1]['content']} euros."
        else:
            item = next(name for name in ("apple", "bread", "cheese", "milk") if name in messages[-1]["content"])
            call = {"name": "price", "arguments": json.dumps({"item": item})}
            message["tool_calls"] = [{"index": 0, "id": "call-1", "type": "function", "function": call}]
        shared = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in ((message, None), ({}, "stop")):
            chunk = {**shared, "choices": [{"index": 0, "finish_reason": reason, "delta": delta}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


@pytest.mark.filterwarnings("ignore")  # of the framework
async def test_the_tool_using_agent_uses_its_tool_and_is_scored(
    tmp_path: Path, at_the_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / "finetuning" / "tools" / "config.yml"
    with serve(ToolCaller) as address:
        monkeypatch.setenv("MODEL_URL", f"{address}/v1")
        config = load_plan(path, [("eval.general.output_dir", str(tmp_path))]).config
        output = await EvaluationRun(EvaluationRunConfig(config_file=config)).run_and_evaluate()
    (_, evaluation), *_ = output.evaluation_results
    assert [item.score for item in evaluation.eval_output_items] == [1.0] * 4
    assert output.eval_input.eval_input_items[0].output_obj == "It costs 0.4 euros."
