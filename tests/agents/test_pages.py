"""The programs of the pages in docs/capture, as written there, show what the table of capture-frameworks.md says."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents.tracing import set_trace_processors, set_tracing_disabled

from rollbus import instrument
from rollbus.producers import MemorySink, init
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, Event, ToolCalled, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.agents.model_server import Faults, ModelServer

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "capture").glob("*.md"))
PROGRAM = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn of themselves


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """The endpoint that the pages' variables name."""
    server = ModelServer(Faults())
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    set_tracing_disabled(False)
    set_trace_processors([])
    yield server
    server.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_pages_program_gives_what_the_table_says(page: Path, server: ModelServer, tmp_path: Path) -> None:
    (text,) = PROGRAM.findall(page.read_text())
    events = play(text, tmp_path)
    row = [f"[{page.stem}](capture/{page.stem}.md)", *describe(server, text, events)]
    line = f"| {' | '.join(row)} |"
    assert line in (DOCS / "capture-frameworks.md").read_text(), line


def play(text: str, folder: Path) -> list[Event]:
    """Run the program in an episode, with its agent as a child episode; return what was recorded."""
    path = folder / "app.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("app_of_page", path)
    assert spec is not None
    assert spec.loader is not None
    app: Any = importlib.util.module_from_spec(spec)
    sink = MemorySink()
    recorder = init(sink=sink)
    patches = instrument(recorder, child_agents=["keeper"])
    spec.loader.exec_module(app)
    with recorder.episode(task="stock"):
        app.main()
    recorder.close(120)
    patches.undo()
    assert not [name for name in recorder.counters if name.startswith(("hook_errors", "calls_outside"))]
    return list(sink.records("episode-events"))


def describe(server: ModelServer, text: str, events: list[Event]) -> Iterator[str]:
    """Say what was recorded: lines of ours in the program, turns, tools, agent names, sub-agents, streams, tokens."""
    turns = {event.response_id: event for event in events if isinstance(event, TurnRecorded)}
    assert {event.episode_id for event in events if isinstance(event, EpisodeStarted)} == {
        event.episode_id for event in events if isinstance(event, EpisodeEnded)
    }
    yield str(text.count("rollbus"))
    yield "all" if turns.keys() == {answer.response_id for answer in server.answers} else "some"
    yield yes(any(isinstance(event, ToolCalled) and "7" in (event.result or "") for event in events))
    yield yes({turn.function for turn in turns.values()} == {"keeper"})
    yield yes(all("/" in turn.episode_id for turn in turns.values()))
    yield yes(
        {answer.streamed for answer in server.answers} == {turn.streamed for turn in turns.values()} == {False, True}
    )
    exact = [
        turn.trainable
        and list(decode_token_ids(turn.completion_token_ids or b"")) == answer.ids
        and list(decode_logprobs(turn.logprobs or b"")) == answer.logprobs
        for answer in server.answers
        if (turn := turns.get(answer.response_id)) is not None
    ]
    yield yes(bool(exact) and all(exact))


def yes(holds: bool) -> str:
    """Return the table's word."""
    return "yes" if holds else "–"
