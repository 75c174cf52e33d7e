"""The examples against `rollbus up` with SmolLM2, started as their pages say, from another folder."""

import ast
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.process.ports import find_free_port
from tests.installs import own_environment, run

pytestmark = [
    pytest.mark.services,
    pytest.mark.walks,
    pytest.mark.timeout(600),
]  # it starts the whole stack, on busy cores

EXAMPLES = Path(__file__).parents[3] / "examples"
FRAMEWORKS = ("langgraph", "llama_index", "adk", "openai_agents", "litellm")
ROLLBUS = Path(sys.executable).with_name("rollbus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def environment(folder: Path) -> Iterator[dict[str, Any]]:
    """Of a shell in which `rollbus up` has started the stack; its ports are free ones."""
    ports = {name: str(find_free_port()) for name in ("kafka", "clickhouse", "art", "model")}
    kafka = f"127.0.0.1:{ports['kafka']}"
    shell: dict[str, Any] = {f"ROLLBUS_STACK__{name.upper()}_PORT": port for name, port in ports.items()} | {
        "ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": kafka,
        "KAFKA_BOOTSTRAP_SERVERS": kafka,
        "OPENAI_BASE_URL": f"http://127.0.0.1:{ports['model']}/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    run(ROLLBUS, "model", "fetch", "smollm2", cwd=folder)
    try:
        completed = run(ROLLBUS, "up", cwd=folder, check=True, **shell)
        assert "the model is SmolLM2-135M-Instruct" in completed.stderr
        run(ROLLBUS, "topics", "create", cwd=folder, check=True, **shell)
        yield shell
    finally:
        run(ROLLBUS, "down", cwd=folder, check=True, **shell)


async def play(environment: dict[str, Any], folder: Path, name: str, *arguments: str) -> dict[str, int]:
    """Run an example to its end and return the recorder's counters, which it prints last."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / name / "agent.py"), *arguments),
        cwd=folder,
        env=own_environment() | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, f"{name}:\n{out.decode()}{err.decode()}"
    last = out.decode().strip().splitlines()[-1]
    counters: dict[str, int] = ast.literal_eval(last[last.index("{") :])
    return counters


async def test_every_example_records_turns_that_can_be_trained(environment: dict[str, Any], folder: Path) -> None:
    where = ("--endpoint", environment["OPENAI_BASE_URL"], "--kafka", environment["KAFKA_BOOTSTRAP_SERVERS"])
    played = await asyncio.gather(
        *(play(environment, folder, framework) for framework in FRAMEWORKS),
        play(environment, folder, "quickstart", *where, "--tickets", "1"),
    )
    for counters in played:
        assert counters["turns_trainable"] >= 1, counters
        assert counters["events_delivered"] == counters["events_emitted"], counters
        assert not [name for name in counters if name.startswith(("turns_untrainable", "hook_errors"))], counters


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(environment: dict[str, Any], folder: Path) -> None:
    import httpx

    body = {"model": "agent", "messages": [{"role": "user", "content": "order 4711 " * 900}], "max_tokens": 8}
    key = {"authorization": f"Bearer {(folder / '.rollbus/secrets/token').read_text().strip()}"}
    answer = httpx.post(f"{environment['OPENAI_BASE_URL']}/chat/completions", json=body, headers=key)
    assert answer.status_code == 400
    assert "maximum context length is 4096 tokens; the prompt has 5" in answer.json()["error"]["message"]
