"""`rollbus doctor capture` runs an agent and says which calls were seen, by which hook, and what to add."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.health.capture import UNSEEN
from tests.agents.model_server import Faults, ModelServer
from tests.console import ROLLBUS

APP = """
    import threading, _thread, time
    import openai

    URL = {url!r}

    def ask(read=lambda answer: answer, **options):
        with openai.OpenAI(api_key="k", base_url=URL, max_retries=0) as client:
            messages = [{{"role": "user", "content": "How many? <e1>"}}]
            return read(client.chat.completions.create(model="agent", messages=messages, **options))

    def good():
        ask()

    async def mixed():
        ask()
        ask(lambda stream: next(iter(stream)), stream=True)
        done = threading.Event()
        _thread.start_new_thread(lambda: (ask(), done.set()), ())
        done.wait()

    def silent():
        pass

    def broken():
        raise KeyError("no shelf")

    def finished(code=None):
        ask()
        raise SystemExit(code)

    def gave_up():
        finished(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the program, whose model server answers with tokens."""
    server = ModelServer(Faults())
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(textwrap.dedent(APP).format(url=server.url))
    yield folder
    server.close()


@pytest.fixture
def working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That folder as the current one, in a process that has imported no library of models without a hook."""
    monkeypatch.chdir(folder)
    for module in UNSEEN:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("app", None)


def examine(agent: str, *, code: int) -> str:
    """Return what the command prints in this process."""
    result = CliRunner().invoke(rollbus, ["doctor", "capture", agent])
    assert result.exit_code == code, result.output
    return result.output


def test_an_agent_whose_calls_can_all_be_trained_passes(folder: Path) -> None:
    command = [ROLLBUS, "doctor", "capture", "app:good"]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    assert completed.returncode == 0, completed.stderr
    rows = [line.split() for line in completed.stdout.splitlines() if "agent@3" in line]
    assert rows == [["0", "agent@3", "httpx", "trainable"]]
    assert "patched: httpx, openai, threading\n" in completed.stdout


@pytest.mark.usefixtures("working_folder")
def test_missed_and_untrainable_calls_are_named_with_a_remedy() -> None:
    output = examine("app:mixed", code=1)
    assert "truncated_stream" in output
    assert "read the stream to its end" in output
    assert "missing: 1 calls were outside of the episode: start what makes them with rb.bind(…)" in output


@pytest.mark.usefixtures("working_folder")
def test_an_agent_without_a_call_differs_from_one_that_fails() -> None:
    assert "no call of a model was seen" in examine("app:silent", code=1)
    assert "Error: the agent failed: KeyError: 'no shelf'" in examine("app:broken", code=1)
    assert "agent: 'app:none' cannot be imported" in examine("app:none", code=1)


@pytest.mark.usefixtures("working_folder")
def test_an_agent_that_ends_its_process_is_judged_by_its_calls_and_exit_code() -> None:
    assert "trainable" in examine("app:finished", code=0)
    assert "Error: the agent failed: SystemExit: 3" in examine("app:gave_up", code=1)
