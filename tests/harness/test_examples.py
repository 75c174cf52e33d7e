"""The examples as they stand: their configurations are read, and the tool-using agent uses its tool."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollbus.harness import Builder, EvaluationRun, EvaluationRunConfig
from rollbus.harness.config_file import load_configuration
from rollbus.harness.datasets import load_dataset

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = sorted((ROOT / "examples").glob("**/config.yml"))


@pytest.fixture
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Paths in the examples are those of a checkout; what they import is forgotten again."""
    monkeypatch.chdir(ROOT)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "examples")):
            del sys.modules[name]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda one: one.parent.name)
def test_every_examples_configuration_and_dataset_can_be_read(path: Path, at_the_root: None) -> None:
    config = load_configuration(path, {})
    assert config.finetuning.enabled
    assert config.eval.general.dataset is not None
    assert load_dataset(config.eval.general.dataset)


async def tool_caller(request: web.Request) -> web.Response:
    """Call the tool with the item that was asked about, then repeat what it said."""
    messages = (await request.json())["messages"]
    said: dict[str, Any] = {"role": "assistant", "content": None}
    if messages[-1]["role"] == "tool":
        said["content"] = f"It costs {messages[-1]['content']} euros."
    else:
        item = next(one for one in ("apple", "bread", "cheese", "milk") if one in messages[-1]["content"])
        call = {"name": "price", "arguments": json.dumps({"item": item})}
        said["tool_calls"] = [{"id": "call-1", "type": "function", "function": call}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    shared = {"id": "a", "object": "chat.completion", "created": 0, "model": "m", "usage": usage}
    return web.json_response({**shared, "choices": [{"index": 0, "finish_reason": "stop", "message": said}]})


@pytest.mark.filterwarnings("ignore")  # of the framework
async def test_the_tool_using_agent_uses_its_tool_and_is_scored(tmp_path: Path, at_the_root: None) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", tool_caller)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    path = ROOT / "examples" / "finetuning" / "tools" / "config.yml"
    config = load_configuration(path, {"MODEL_URL": url}, [("eval.general.output_dir", str(tmp_path))])
    try:
        async with Builder(config) as builder:
            output = await EvaluationRun(EvaluationRunConfig(config_file=config), builder).run_and_evaluate()
    finally:
        await runner.cleanup()
    (_, found), *_ = output.evaluation_results
    assert [item.score for item in found.eval_output_items] == [1.0] * 4
    assert output.eval_input.eval_input_items[0].output_obj == "It costs 0.4 euros."
