"""An operator's day: each symptom of the runbook is provoked, reported to a webhook, and found by the page's commands.

What nobody can provoke in a test, such as a full disk of another machine, is said in the log as that machine says it.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.process.ports import find_free_port
from rollbus.schemas.records.groups import CurriculumState
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.records.steps import StepCompleted, StepFailed
from rollbus.schemas.topics import CURRICULUM, EPISODE_EVENTS, HEARTBEATS, TRAINING_STEPS, Topic
from tests.services.conftest import clickhouse
from tests.services.health_world import World, make_world, send_records
from tests.web import QuietHandler

__all__ = ["clickhouse"]
pytestmark = pytest.mark.faults

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
SECTIONS = {
    title: re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    for title, _, text in (part.partition("\n") for part in RUNBOOK.read_text().split("\n## ")[1:])
}
WAIT_S = 60.0
LIMITS = {"waiting_s": 60, "lag_records": 20, "no_step_s": 1_000, "clock_s": 5}


class Inbox:
    """A webhook that keeps what it got; it fails the first time, as webhooks do."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        inbox, self._failed = self, False

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.read_json()
                if inbox._failed:
                    inbox.got.append(body["alarm"] | {"text": body["text"]})
                self.answer(None, 200 if inbox._failed else 503)
                inbox._failed = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def until(self, alarm: str, state: str, since: int) -> dict[str, Any]:
        """Wait for an alarm that came after so many others; return it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = [one for one in self.got[since:] if (one["alarm"], one["state"]) == (alarm, state)]
            if found:
                return found[0]
            assert time.monotonic() < deadline, f"no {alarm} is {state}: {self.got[since:]}"
            time.sleep(0.1)


class Day:
    """The world, the webhook, and how long each symptom took to its cause."""

    def __init__(self, world: World, inbox: Inbox) -> None:
        self.world, self.inbox, self.took_s = world, inbox, dict[str, float]()
        self._since, self._began_s = 0, time.monotonic()

    def begin(self) -> None:
        self._since, self._began_s = len(self.inbox.got), time.monotonic()

    def told(self, alarm: str) -> dict[str, Any]:
        found = self.inbox.until(alarm, "firing", self._since)
        self.took_s[alarm] = time.monotonic() - self._began_s
        return found

    def over(self, alarm: str) -> None:
        self.inbox.until(alarm, "resolved", self._since)

    def look(self, section: str, *, environment: dict[str, str] | None = None, **names: str) -> str:
        """Run a section's commands as the page has them; return all that they print."""
        printed = ""
        for line in "".join(SECTIONS[section]).splitlines():
            for name, value in names.items():
                line = line.replace(name, value)
            answer = self.world.rollbus(*line.split()[1:], check=False, **environment or {})
            assert "Traceback" not in answer.stderr, answer.stderr
            printed += answer.stdout + answer.stderr
        return " ".join(printed.split())

    def say(self, topic: Topic, *records: Any) -> None:
        send_records(self.world.kafka, topic.full_name(self.world.namespace), records)


@pytest.fixture
def day(tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str) -> Iterator[Day]:
    inbox = Inbox()
    health = {"interval_s": 0.5, "alarms": LIMITS, "metrics_ports": {"alarms": 0}}
    with make_world(tmp_path, kafka, clickhouse, namespace, health=health) as world:
        world.rollbus("topics", "create")
        yield Day(world, inbox)
    inbox.server.shutdown()
    inbox.server.server_close()


def find_origin(world: World) -> str:
    """Return the offset that `rollbus dead-letters list` names."""
    (offset,) = set(re.findall(r"episode-events:0:(\d+)", world.rollbus("dead-letters", "list").stdout))
    return str(offset)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def elsewhere(**changes: Any) -> Heartbeat:
    """A beat of a machine that has trouble; its next is long in coming."""
    now = now_ms()
    values: dict[str, Any] = {"beat_at_ms": now, "started_at_ms": now, **changes}
    return Heartbeat(
        process="worker@db-3:41-1", kind="worker", host="db-3", pid=41, version="0.1.0", number=9, interval_ms=60_000,
        **values,
    )  # fmt: skip


def step(number: int, *, ended_ms: int, reward: float = 0.8, **metrics: float) -> StepCompleted:
    return StepCompleted(
        run_id="main", model="agent", step=number, batch_hash=f"b{number}", batch_number=number,
        base_version=number - 1, policy_version=number, trained=(), metrics={"reward_mean": reward, **metrics},
        started_at_ms=ended_ms - 100, completed_at_ms=ended_ms,
    )  # fmt: skip


def test_every_symptom_of_the_runbook_is_reported_and_found(day: Day) -> None:
    world = day.world
    alarms = world.start("alarms", "alarms", "run", "--url", day.inbox.url)
    worker = world.start("worker", "worker", "run")
    sink = world.start("sink", "sink", "run")
    world.until(lambda found: len(found["health"]["processes"]) == 3, "not all beat")

    day.begin()
    os.kill(worker.pid, signal.SIGSTOP)
    assert f"kill -CONT {worker.pid}" in day.told("silence")["remedy"]
    assert "stopped by a signal" in day.look("silence")
    os.kill(worker.pid, signal.SIGCONT)
    day.over("silence")

    day.begin()
    world.kill("sink")
    assert day.told("silence")["subject"].startswith("sink@")
    assert f"sink {sink.pid} on" in day.look("silence")
    day.begin()
    world.start("sink", "sink", "run", ROLLBUS_CLICKHOUSE__PORT=str(find_free_port()))
    day.over("silence")
    assert "cannot be reached" in day.told("trouble")["what"]
    assert "cannot be reached" in day.look("trouble")
    world.end("sink")
    day.over("trouble")

    day.begin()
    day.say(EPISODE_EVENTS, b"no record")
    assert day.told("dead_letters")["what"].startswith("records with dead letters: 1")
    origin = f"{EPISODE_EVENTS.name}:0:{find_origin(world)}"
    printed = day.look("dead-letters", ORIGIN=origin)
    assert "UndecodableError" in printed
    assert "too short for a record" in printed

    day.begin()
    world.end("worker")
    day.say(EPISODE_EVENTS, *[b"no record"] * 40)
    assert "no process reads episode-events for assembly" in day.told("lag")["what"]
    assert "no process reads episode-events for assembly" in day.look("lag")
    world.start("worker", "worker", "run")
    day.over("lag")

    day.begin()
    day.say(HEARTBEATS, elsewhere(disk_free_bytes=10**8, disk_total_bytes=10**12))
    assert day.told("disk")["subject"] == "db-3"
    assert "GPU" in day.look("disk")
    day.begin()
    day.say(HEARTBEATS, elsewhere(beat_at_ms=now_ms() + 3_600_000))
    assert "ahead of the broker's" in day.told("clock")["what"]
    assert "clock" in day.look("clock")
    day.over("disk")
    day.begin()
    day.say(HEARTBEATS, elsewhere(waiting_since_ms=now_ms() - 120_000, positions={"scoring[0]": 7}))
    assert "its work has not moved" in day.told("waiting")["what"]
    assert '"scoring[0]": 7' in day.look("waiting")
    day.say(HEARTBEATS, elsewhere(is_last=True))
    day.over("waiting")

    day.begin()
    old_ms = now_ms() - 2_000_000
    day.say(TRAINING_STEPS, *[step(n, ended_ms=old_ms) for n in range(1, 21)])
    day.told("no_step")
    assert "20" in day.look("no-step")
    day.begin()
    day.say(TRAINING_STEPS, *[step(n, ended_ms=now_ms(), reward=0.1) for n in range(21, 26)])
    window = CurriculumState(
        run_id="main", window=1, mode="off", percentile=1.0, last_expansion_window=-1, seen_group_ids=("g1", "g2"),
        admitted_group_ids=(), rejected_group_ids=(), closed_at_ms=now_ms(),
    )  # fmt: skip
    day.say(CURRICULUM, window)
    day.over("no_step")
    assert "fell by 0.700" in day.told("reward")["what"]
    assert "100%" in day.told("no_signal")["what"]
    assert "0.100" in day.look("reward")
    assert "0.100" in day.look("no-signal")
    day.begin()
    failed = StepFailed(
        run_id="main", model="agent", step=26, attempt=1, batch_hash="b26", batch_number=26, base_version=25,
        error_class="UnavailableError", message="the art-server is away", final=True, failed_at_ms=now_ms(),
    )  # fmt: skip
    day.say(TRAINING_STEPS, failed)
    assert "the art-server is away" in day.told("failed")["what"]
    assert "the art-server is away" in day.look("failed")

    day.begin()
    away = f"127.0.0.1:{find_free_port()}"
    elsewhere_alarms = world.start("alarms-away", "alarms", "run", "--url", day.inbox.url,
                                   ROLLBUS_KAFKA__BOOTSTRAP_SERVERS=away)  # fmt: skip
    assert day.told("broker")["subject"] == away
    assert "cannot be reached" in day.look("broker", environment={"ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": away})
    assert alarms.poll() is None
    assert elsewhere_alarms.poll() is None
    assert set(SECTIONS) == {name.replace("_", "-") for name in day.took_s}
    print({name: round(took_s, 1) for name, took_s in day.took_s.items()})
