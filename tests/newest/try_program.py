"""Run one program in this very environment, recorded without a change, and hold its turns against the server's answers.

python -m tests.newest.try_program <framework>
"""

import importlib.util
import json
import os
import re
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from rollbus import instrument
from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.integrations.instrument import Instrumentation
from rollbus.producers.turns.turn_record import NOT_CAPTURED
from rollbus.schemas.records.events import ToolCalled, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.agents.compare import verdict_on
from tests.agents.model_server import Faults, ModelServer
from tests.newest.frameworks import FRAMEWORKS

AGENT, TOOL = "keeper", "stock"
"""Of every program that has one."""
PROGRAM = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)


def load(name: str) -> Any:
    """Import a framework's program."""
    path = FRAMEWORKS[name].program(name)
    if path.suffix == ".md":
        (text,) = PROGRAM.findall(path.read_text())
        path = Path(tempfile.mkdtemp()) / "app.py"
        path.write_text(text)
    spec = importlib.util.spec_from_file_location("app", path)
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    return app


def record(name: str) -> tuple[ModelServer, Recorder, Instrumentation, list[Any]]:
    """Run the framework's program in an episode; return its server, and what was recorded."""
    server = ModelServer(Faults())
    os.environ |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_BASE": server.url, "OPENAI_API_KEY": "k"}
    sink = MemorySink()
    recorder = init(sink=sink)
    patches = instrument(recorder)
    app = load(name)
    with recorder.episode(task="newest"):
        app.main()
    recorder.close(120)
    server.close()
    return server, recorder, patches, list(sink.records("episode-events"))


def find_faults(name: str) -> list[str]:
    """Return what the record lacks; nothing if all is there."""
    server, recorder, patches, events = record(name)
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    turns = [turn for turn in turns if turn.untrainable_reason != NOT_CAPTURED]  # these give way
    faults = [f"{library}: {error}" for library, error in patches.failed.items()]
    faults += [f"{count} × {counter}" for counter, count in recorder.counters.items() if "hook_errors" in counter]
    verdicts = {answer.response_id: verdict_on(answer) for answer in server.answers}
    faults += [
        f"a turn is {turn.untrainable_reason}"
        for turn in turns
        if turn.untrainable_reason != verdicts.get(turn.response_id or "")
    ]
    tokens = sorted((decode_token_ids(turn.completion_token_ids or b""), turn.logprobs) for turn in turns)
    sampled = sorted((answer.ids, answer.logprobs) for answer in server.answers)
    if not sampled or [(list(ids), list(decode_logprobs(logprobs or b""))) for ids, logprobs in tokens] != sampled:
        faults.append(f"{len(turns)} turns do not hold the tokens of {len(sampled)} answers")
    if FRAMEWORKS[name].agents and (names := {turn.function for turn in turns}) != {AGENT}:
        faults.append(f"the agents of the turns are {sorted(names)}")
    return faults + find_tool_faults(name, server, [event for event in events if isinstance(event, ToolCalled)])


def find_tool_faults(name: str, server: ModelServer, tools: list[ToolCalled]) -> list[str]:
    """Return what the records of tools lack."""
    calls = [call["id"] for answer in server.answers for call in answer.message.get("tool_calls") or ()]
    faults = [f"tool {tool.name} failed: {tool.error}" for tool in tools if tool.error]
    faults += [f"a tool is named {tool.name}" for tool in tools if tool.name not in (TOOL, *FRAMEWORKS[name].own_tools)]
    if FRAMEWORKS[name].tools and not tools:
        faults.append("no tool is recorded")
    if FRAMEWORKS[name].tools and (ids := [tool.tool_call_id for tool in tools]) != calls:
        faults.append(f"the tools are the calls {ids} of {calls}")
    return faults


if __name__ == "__main__":
    framework = sys.argv[1]
    distribution = FRAMEWORKS[framework].distributions[0].partition("[")[0]
    print("\n" + json.dumps({"version": metadata.version(distribution), "faults": find_faults(framework)}))
