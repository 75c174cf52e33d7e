"""The examples as they stand: their configurations are read, and the tool-using agent uses its tool."""

import json
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from nat.data_models.evaluate_runtime import EvaluationRunConfig
from nat.plugins.eval.runtime.evaluate import EvaluationRun

from rollbus.harness.configuration import load_plan
from rollbus.harness.finetune import _count_examples

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted((ROOT / "examples").glob("**/config.yml"))


@pytest.fixture
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Paths in the examples are those of a checkout."""
    monkeypatch.chdir(ROOT)
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda one: one.parent.name)
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


async def tool_caller(request: web.Request) -> web.StreamResponse:
    """Call the tool with the item that was asked about, then repeat what it said; streamed, as the agent asks."""
    messages = (await request.json())["messages"]
    said: dict[str, Any] = {"role": "assistant", "content": ""}
    if messages[-1]["role"] == "tool":
        said["content"] = f"It costs {messages[-1]['content']} euros."
    else:
        item = next(one for one in ("apple", "bread", "cheese", "milk") if one in messages[-1]["content"])
        call = {"name": "price", "arguments": json.dumps({"item": item})}
        said["tool_calls"] = [{"index": 0, "id": "call-1", "type": "function", "function": call}]
    shared = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for delta, reason in ((said, None), ({}, "stop")):
        chunk = {**shared, "choices": [{"index": 0, "finish_reason": reason, "delta": delta}]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


@pytest.mark.filterwarnings("ignore")  # of the framework
async def test_the_tool_using_agent_uses_its_tool_and_is_scored(
    tmp_path: Path, at_the_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", tool_caller)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("MODEL_URL", f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    path = ROOT / "examples" / "finetuning" / "tools" / "config.yml"
    config = load_plan(path, [("eval.general.output_dir", str(tmp_path))]).config
    try:
        output = await EvaluationRun(EvaluationRunConfig(config_file=config)).run_and_evaluate()
    finally:
        await runner.cleanup()
    (_, found), *_ = output.evaluation_results
    assert [item.score for item in found.eval_output_items] == [1.0] * 4
    assert output.eval_input.eval_input_items[0].output_obj == "It costs 0.4 euros."
