"""What an operator's day needs: a stack of its own, a webhook, a judge that can hang, a machine with a wrong clock.

`Day` provokes an incident, waits for its alarm, and runs the runbook's commands until one of them prints the cause.
"""

import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.schemas.topics import EPISODE_EVENTS
from tests.builders import make_episode
from tests.faults.test_brokers import nodes, start
from tests.faults.test_disks import SmallDisk
from tests.services.stack.health_world import World, make_world, send_records
from tests.web import QuietHandler, serve

RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
COMMANDS = {
    title: "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    for title, _, text in (part.partition("\n") for part in RUNBOOK.read_text().split("\n## ")[1:])
    if text.count("**Seen:**")
}
"""By section of the page."""
NOT_PROVOKED = {"no-process", "no-traffic", "no-step", "long-step", "archive-behind", "archive-missing"}
"""Sections whose symptom the tests of health, funnel and archive make: here it would take longer than the day."""
WAIT_S = 90.0
LIMITS = {"waiting_s": 8, "lag_records": 20, "no_step_s": 20, "hold_s": 0}
GOOD, BAD, EQUAL = (0.7, 0.8, 0.9), (0.0, 0.1, 0.2), (0.0, 0.0, 0.0)
"""Rewards of a group's episodes."""
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && id == CLOCK_REALTIME) now->tv_sec += 3600;
    return failed;
}
"""
"""For the processes of a machine whose clock is an hour ahead."""


class Inbox:
    """A webhook that keeps what it got; it fails the first time, as webhooks do."""

    def __init__(self) -> None:
        self.alarm_events: list[dict[str, Any]] = []
        inbox, self._failed = self, False

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.read_json()
                if inbox._failed:
                    inbox.alarm_events.append(body["alarm"] | {"text": body["text"]})
                self.answer(None, 200 if inbox._failed else 503)
                inbox._failed = True

        self.handler, self.url = Handler, ""

    def firing(self) -> set[str]:
        """Return the alarms that have begun and not ended."""
        states = {
            (alarm_event["alarm"], alarm_event["subject"]): alarm_event["state"] for alarm_event in self.alarm_events
        }
        return {alarm for (alarm, _), state in states.items() if state == "firing"}

    def wait_for(self, alarm: str, state: str, since: int, subject: str = "") -> dict[str, Any]:
        """Wait for an alarm that came after so many others, of a subject that begins so; return it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            for alarm_event in self.alarm_events[since:]:
                if (alarm_event["alarm"], alarm_event["state"]) == (alarm, state) and alarm_event["subject"].startswith(
                    subject
                ):
                    return alarm_event
            assert time.monotonic() < deadline, f"no {alarm} is {state}: {self.alarm_events[since:]}"
            time.sleep(0.1)


class Judge:
    """A model that grades, until it hangs."""

    def __init__(self) -> None:
        self.answers = answers = threading.Event()
        self.answers.set()

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                self.read_body()
                answers.wait(WAIT_S)
                self.answer({"choices": [{"message": {"content": "7"}}]})

        self.handler, self.url = Handler, ""


class Day:
    """The stack, the webhook, and after how long each incident was reported and its cause on the screen."""

    def __init__(self, world: World, inbox: Inbox, judge: Judge, disk: SmallDisk, services: dict[str, ServiceProcess]):
        self.world, self.inbox, self.judge, self.disk, self.services = world, inbox, judge, disk, services
        self.sections = set[str]()
        """Of the runbook, whose commands have found a cause."""
        self.times: list[str] = []
        self._since, self._began_s, self._incident = 0, 0.0, ""
        self.groups = 0
        """That agents have finished."""

    def start_work(self) -> None:
        """Start all processes, and train what later rewards are compared with."""
        self.world.start("alarms", "alarms", "run", "--url", self.inbox.url)
        self.world.start("worker", "worker", "run")
        self.world.start("sink", "sink", "run")
        self.start_trainer()
        self.world.until(lambda picture: len(picture["health"]["processes"]) == 4, "not all beat")
        self.train(20)

    def begin(self, incident: str) -> None:
        """Begin an incident once nothing fires but the dead letters, which do so for an hour."""
        deadline = time.monotonic() + WAIT_S
        while firing := self.inbox.firing() - {"dead_letters"}:
            assert time.monotonic() < deadline, f"{firing} do not end"
            if firing & {"no_step", "no_traffic"}:
                self.train(1)
            time.sleep(0.1)
        self._incident, self._since, self._began_s = incident, len(self.inbox.alarm_events), time.monotonic()

    def wait_for_alarm(self, alarm: str, subject: str = "") -> dict[str, Any]:
        """Return what the webhook got."""
        alarm_event = self.inbox.wait_for(alarm, "firing", self._since, subject)
        self._note(alarm, "reported")
        return alarm_event

    def wait_until_over(self, alarm: str) -> None:
        """Wait until the webhook hears that the alarm has ended."""
        self.inbox.wait_for(alarm, "resolved", self._since)

    def find_cause(self, section: str, cause: str, **names: str) -> None:
        """Run a section's commands as the page has them; one of them prints the cause."""
        printed = ""
        for line in COMMANDS[section]:
            for name, value in names.items():
                line = line.replace(name, value)
            answer = self.world.rollbus(*line.split()[1:], check=False)
            assert "Traceback" not in answer.stderr, answer.stderr
            is_new = cause not in printed
            printed += " ".join((answer.stdout + answer.stderr).split()) + "\n"
            if is_new and cause in printed:
                self._note(section, f"cause on the screen (`{line}`)")
        assert cause in printed, printed
        self.sections.add(section)

    def _note(self, what: str, happened: str) -> None:
        self.times.append(f"{self._incident}: {what} {happened} after {time.monotonic() - self._began_s:.1f} s")

    def send_groups(self, groups: int, rewards: Sequence[float] = GOOD) -> None:
        """Let agents finish so many groups of episodes."""
        events = []
        for _ in range(groups):
            self.groups += 1
            group = {"group_id": f"g{self.groups}", "group_size": len(rewards), "example_id": None}
            for member, reward in enumerate(rewards):
                events += make_episode(f"e{self.groups}-{member}", reward=reward, start=group)
        self.send(*events)

    def send(self, *records: Any) -> None:
        """Write records of an agent, or bytes as they are."""
        send_records(self.world.kafka, EPISODE_EVENTS.full_name(self.world.namespace), records)

    def train(self, groups: int) -> None:
        """Send groups, and wait until each has made a step."""
        step = self._step() + groups
        self.send_groups(groups)
        self.world.until(lambda picture: self._step(picture) >= step, f"step {step} does not come")

    def _step(self, picture: dict[str, Any] | None = None) -> int:
        runs = (picture or self.world.health())["health"]["runs"]
        return int(runs[0]["step"]) if runs else 0

    def start_trainer(self) -> "subprocess.Popen[bytes]":
        """Start a trainer on the machine with the small disk."""
        inside = [*self.disk.enter, "sh", "-c", 'cd "$0" && exec "$@"', str(self.world.folder)]
        folder = str(self.world.folder / "trainers-disk")
        return self.world.start("trainer", "trainer", "run", prefix=inside, ROLLBUS_STACK__DATA_DIR=folder)

    def start_sink_with_a_wrong_clock(self) -> None:
        """Start a second sink under another host's name and with a clock that is an hour ahead."""
        source, library = self.world.folder / "clock.c", self.world.folder / "clock.so"
        source.write_text(WRONG_CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        machine = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c", 'hostname db-3 && exec "$0" "$@"']
        self.world.start("late sink", "sink", "run", prefix=machine, LD_PRELOAD=str(library))


@contextmanager
def make_day(folder: Path, namespace: str) -> Iterator[Day]:
    """Start a stack of its own: what is killed here is nobody else's."""
    (broker,) = nodes(folder / "kafka", 1)
    port = find_free_port()
    stored = clickhouse_service(folder=folder / "stored", port=port)
    services = {
        "broker": broker,
        "clickhouse": ServiceProcess(stored, log_path=folder / "clickhouse.log", prefix=tethered()),
    }
    (folder / "empty").mkdir()
    (machine := folder / "trainers-disk").mkdir()
    with ExitStack() as stack:
        disk, inbox, judge = SmallDisk(machine, folder / "empty"), Inbox(), Judge()
        stack.callback(disk.close)
        inbox.url = stack.enter_context(serve(inbox.handler))
        judge.url = f"{stack.enter_context(serve(judge.handler))}/v1"
        for service in services.values():
            stack.callback(service.stop, grace_s=1.0)
            start([service])
        settings = settings_of_the_day(judge, machine)
        world = stack.enter_context(
            make_world(folder, broker.service.address, ("127.0.0.1", port), namespace, **settings)
        )
        stack.callback(judge.answers.set)
        world.rollbus("topics", "create")
        yield Day(world, inbox, judge, disk, services)


def settings_of_the_day(judge: Judge, machine: Path) -> dict[str, Any]:
    """Return sections of the settings: steps of one group, windows of two, alarms that come soon."""
    rewards = [
        {"type": "feedback", "name": "reward"},
        {"type": "judge", "name": "graded", "weight": 0, "timeout_s": 300},
    ]
    batching = {"groups_per_step": 1, "batches_ahead": 1_000, "max_off_policy_steps": 1_000}
    backend = {"type": "memory", "folder": str(machine / "model")}
    return {
        "health": {"interval_s": 0.5, "alarms": LIMITS, "metrics_ports": {"alarms": 0}},
        "worker": {"event_partitions": 1, "tick_interval_ms": 200},
        "judge": {"base_url": judge.url, "model": "grader"},
        "scoring": {"rewards": rewards},
        "runs": [{"run_id": "main", "curriculum": {"groups_per_window": 2}, "batching": batching}],
        "trainer": {"backend": backend},
    }
