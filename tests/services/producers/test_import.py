"""Traffic of elsewhere through the installed commands, on a real broker: imported, then judged in a replay and exported
as the last section of docs/import.md says, word for word.
"""

import asyncio
import json
import os
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.health.reading import read_health
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.tether import tethered
from rollbus.runtime.http.listener import open_listener
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.records.events import EpisodeStarted, RewardReported, TurnRecorded
from rollbus.schemas.records.trajectories import Trajectory
from tests.console import ROLLBUS
from tests.producers.imports.formats.reading import request_of
from tests.producers.imports.formats.test_langfuse import BLOBS
from tests.producers.imports.formats.test_otlp import AGENT
from tests.readers.files import rows_of
from tests.services.replay.live import records, settings_of
from tests.web import QuietHandler, serve

pytestmark = pytest.mark.services
TOKEN = "only-for-this-test"
PAGE = Path(__file__).parents[3] / "docs" / "import.md"
DEADLINE_S = 240.0


class _Judge(QuietHandler):
    """Likes the conversations that know where the order is."""

    def do_POST(self) -> None:
        text = self.read_body().decode()
        message = {"role": "assistant", "content": "9" if "in Berlin" in text else "2"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self.answer({"id": "j", "object": "chat.completion", "choices": [choice]})


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    with serve(_Judge) as address:
        yield f"{address}/v1"


@dataclass(frozen=True, slots=True)
class Stack:
    """One namespace, as its user reaches it: from a folder with a settings file."""

    folder: Path
    namespace: str

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBUS_")}
        path = f"{Path(ROLLBUS).parent}:{inherited['PATH']}"
        ours = {"ROLLBUS_CONFIG": "rollbus.yaml", "ROLLBUS_ART_SERVER__TOKEN": TOKEN}
        return {**inherited, **ours, "PATH": path, "HF_HOME": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}

    async def run(self, *arguments: str) -> str:
        """Run a command and return what it printed."""
        return await self.shell(shlex.join(["rollbus", *arguments]))

    async def shell(self, lines: str) -> str:
        """Run lines as a user types them; return what they printed."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-ec", lines),
            cwd=self.folder,
            env=self.environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return output

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a command until the block ends."""
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(*tethered(), ROLLBUS, *arguments),
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()

    async def events(self) -> list[Any]:
        return await records(settings_of(self.folder / "rollbus.yaml").stream_settings(), "episode-events")

    async def until_stored(self, count: int) -> None:
        """Wait until the sink has written so many trajectories."""
        clickhouse = settings_of(self.folder / "rollbus.yaml").clickhouse
        statement = "SELECT count() FROM trajectories FINAL WHERE namespace = {namespace:String}"
        deadline, stored_count = time.monotonic() + DEADLINE_S, 0
        while stored_count < count:
            assert time.monotonic() < deadline, (self.folder / "sink.log").read_text()[-3000:]
            await asyncio.sleep(0.3)
            with suppress(RollbusError):  # the tables are not there yet
                stored_count = int(ask(clickhouse, statement, {"namespace": self.namespace}).rows[0][0])

    async def trajectories(self, count: int) -> list[Trajectory]:
        """Wait for so many trajectories."""
        deadline, trajectories = time.monotonic() + DEADLINE_S, list[Trajectory]()
        stream = settings_of(self.folder / "rollbus.yaml").stream_settings()
        while len(trajectories) < count:
            assert time.monotonic() < deadline, (self.folder / "worker.log").read_text()[-3000:]
            await asyncio.sleep(0.3)
            trajectories = [
                record for record in await records(stream, "trajectories") if isinstance(record, Trajectory)
            ]
        return trajectories


@pytest.fixture
async def stack(kafka: str, clickhouse: tuple[str, int], namespace: str, judge: str, tmp_path: Path) -> Stack:
    host, port = clickhouse
    settings = {
        "namespace": namespace,
        "kafka": {"bootstrap_servers": kafka},
        "worker": {"event_partitions": 2, "tick_interval_ms": 200},
        "clickhouse": {"host": host, "port": port, "database": namespace.strip(".").replace("-", "_")},
        "sink": {"linger_ms": 100},
        "judge": {"base_url": judge, "model": "judge"},
    }
    (tmp_path / "rollbus.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "rows.jsonl").write_text("".join(json.dumps(blob) + "\n" for blob in BLOBS))
    (tmp_path / "spans.jsonl").write_text(json.dumps(request_of(AGENT)) + "\n")
    stack = Stack(tmp_path, namespace)
    await stack.run("topics", "create")
    return stack


async def test_an_import_is_judged_in_a_replay_and_exported_as_a_data_set(stack: Stack) -> None:
    await stack.run("import", "otlp", "spans.jsonl", "--task", "shop")
    await stack.run("import", "langfuse", "export")
    import_output = await stack.run("import", "langfuse", "export")  # twice is once
    assert "langfuse.trace.metadata.nested" in import_output
    section = PAGE.read_text().partition("## Judge what was imported, and export it")[2]
    page = dict(re.findall(r"^```(\w+)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL))
    (stack.folder / "judge.yaml").write_text(page["yaml"])
    async with stack.running("worker", "run"), stack.running("sink", "run"):
        by_task = {trajectory.task: trajectory for trajectory in await stack.trajectories(2)}
        await stack.until_stored(2)
        exported = await stack.shell(page["sh"].replace("replay-judged.rollbus.", f"replay-judged.{stack.namespace}"))
    assert set(by_task) == {"refund", "shop"}
    refund = by_task["refund"]
    assert (refund.trainable, refund.untrainable_reason) == (False, "no_token_ids")
    assert (refund.started_at_ms, refund.labels["user"]) == (1_772_359_200_000, "ann")
    assert {(reward.name, reward.value) for reward in refund.rewards} == {("helpful", 0.5), ("correct", 1.0)}
    assert len(await stack.trajectories(2)) == 2
    load = page["python"].splitlines()[-1].removeprefix("rows = ")  # tests/readers run such lines with `datasets` 5
    assert load in exported
    (row,) = rows_of(stack.folder / "out" / "train.parquet")
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][-1]["content"] == "It is in Berlin."


async def test_a_port_of_grpc_that_is_taken_ends_ingest_without_a_traceback(stack: Stack) -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        output = await stack.shell(f"! rollbus ingest serve --port 0 --grpc-port {port}")
    assert f"port {port} of 127.0.0.1 for gRPC is taken; stop what listens there, or change --grpc-port" in output
    assert "Traceback" not in output


async def test_acknowledged_spans_survive_a_kill_of_the_server(stack: Stack) -> None:
    ports = [find_free_port(), find_free_port()]
    serve = ["ingest", "serve", "--port", str(ports[0]), "--grpc-port", str(ports[1]), "--settle", "0.2"]
    url, headers = f"http://127.0.0.1:{ports[0]}", {"authorization": f"Bearer {TOKEN}"}

    async def send(client: httpx.AsyncClient, *spans: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with suppress(httpx.TransportError):
                (await client.post(f"{url}/v1/traces", json=request_of(spans))).raise_for_status()
                return
            assert time.monotonic() < deadline, (stack.folder / "ingest.log").read_text()
            await asyncio.sleep(0.2)

    async with httpx.AsyncClient(headers=headers, timeout=120) as client:
        async with stack.running(*serve) as process:
            await send(client, *AGENT[1:4])
            process.kill()
            await process.wait()
        async with stack.running(*serve):
            await send(client, *AGENT[3:], AGENT[0])
            deadline = time.monotonic() + DEADLINE_S
            while (await client.get(f"{url}/rollbus/health")).json()["counters"]["traces_sent"] < 1:
                assert time.monotonic() < deadline, (stack.folder / "ingest.log").read_text()
                await asyncio.sleep(0.2)
    settings = settings_of(stack.folder / "rollbus.yaml")
    picture = await read_health(settings.kafka, stack.namespace)
    newest = max(picture.processes, key=lambda process: process.process.rpartition("-")[2])
    assert (newest.kind, newest.state, newest.holds, newest.work) == ("ingest", "stopped", ("OTLP",), 1)
    events = await stack.events()
    assert [event.completion.content for event in events if isinstance(event, TurnRecorded)] == ["a1", "b1", "b2", "a2"]
    assert len([event for event in events if isinstance(event, EpisodeStarted)]) == 1
    assert not [event for event in events if isinstance(event, RewardReported)]
