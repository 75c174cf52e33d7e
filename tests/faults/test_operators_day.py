"""An operator's day: each symptom of the runbook is provoked, reported to a webhook, and found by the page's commands.

Nothing is written into the log in another's name: processes are frozen and killed, services die, a disk fills up, a
machine's clock is wrong, a judge hangs, agents get worse rewards. `pytest -s` prints the times of docs/runbook.md.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus.schemas.topics import EPISODE_EVENTS
from tests.faults.operators_day import BAD, COMMANDS, EQUAL, NOT_PROVOKED, Day, make_day
from tests.faults.test_brokers import kill, start

pytestmark = pytest.mark.faults


@pytest.fixture
def day(tmp_path: Path, namespace: str) -> Iterator[Day]:
    """A stack of its own, at work."""
    with make_day(tmp_path, namespace) as operators_day:
        operators_day.start_work()
        yield operators_day


def test_every_symptom_of_the_runbook_is_reported_and_found(day: Day) -> None:
    for incident in INCIDENTS:
        day.begin(incident.__name__.replace("_", " "))
        incident(day)
    day.train(1)
    assert day.world.process_by_name["alarms"].poll() is None
    print("\n".join(day.times))
    assert day.sections == set(COMMANDS) - NOT_PROVOKED


def frozen_worker(day: Day) -> None:
    worker = day.world.process_by_name["worker"]
    os.kill(worker.pid, signal.SIGSTOP)
    assert f"kill -CONT {worker.pid}" in day.wait_for_alarm("silence")["remedy"]
    day.find_cause("silence", "stopped by a signal")
    os.kill(worker.pid, signal.SIGCONT)
    day.wait_until_over("silence")


def killed_trainer(day: Day) -> None:
    trainer = day.world.process_by_name["trainer"]
    day.world.kill("trainer")
    assert "run main of agent" in day.wait_for_alarm("silence")["what"]
    day.find_cause("silence", f"trainer {trainer.pid} on")
    day.start_trainer()
    day.wait_until_over("silence")


def killed_sink(day: Day) -> None:
    sink = day.world.process_by_name["sink"]
    day.world.kill("sink")
    assert day.wait_for_alarm("silence")["subject"].startswith("sink@")
    day.find_cause("silence", f"sink {sink.pid} on")
    day.world.start("sink", "sink", "run")
    day.wait_until_over("silence")


def dead_clickhouse(day: Day) -> None:
    kill(day.services["clickhouse"])
    day.send_groups(1)
    assert "cannot be reached" in day.wait_for_alarm("trouble")["what"]
    day.find_cause("trouble", "cannot be reached")
    start([day.services["clickhouse"]])
    day.wait_until_over("trouble")


def bytes_that_are_no_record(day: Day) -> None:
    day.send(b"no record")
    assert day.wait_for_alarm("dead_letters")["what"].startswith("records with dead letters: 1")
    (offset,) = set(re.findall(r"episode-events:0:(\d+)", day.world.rollbus("dead-letters", "list").stdout))
    day.find_cause("dead-letters", "too short for a record", ORIGIN=f"{EPISODE_EVENTS.name}:0:{offset}")


def no_worker(day: Day) -> None:
    day.world.end("worker")
    day.send_groups(5)
    assert "no process reads episode-events for assembly" in day.wait_for_alarm("lag", "assembly in")["what"]
    day.find_cause("lag", "no process reads episode-events for assembly")
    day.world.start("worker", "worker", "run")
    day.wait_until_over("lag")


def full_disk(day: Day) -> None:
    day.disk.fill()
    assert "0.00 of" in day.wait_for_alarm("disk")["what"]
    day.find_cause("disk", "0.0 GiB")
    day.send_groups(30)  # the journal's last page has room for some steps
    assert "No space left on device" in day.wait_for_alarm("failed")["what"]
    day.find_cause("failed", "No space left on device")
    day.disk.free()
    day.wait_until_over("disk")
    day.wait_until_over("failed")


def wrong_clock(day: Day) -> None:
    day.start_sink_with_a_wrong_clock()
    assert "the clock of db-3 is 60 min ahead" in day.wait_for_alarm("clock")["what"]
    day.find_cause("clock", "the clock of db-3")
    day.world.end("late sink")
    day.wait_until_over("clock")


def judge_that_hangs(day: Day) -> None:
    day.judge.answers.clear()
    day.send_groups(1)
    assert "its work has not moved" in day.wait_for_alarm("waiting")["what"]
    day.find_cause("waiting", "scoring[0] at")
    day.judge.answers.set()
    day.wait_until_over("waiting")


def paused_run(day: Day) -> None:
    day.world.rollbus("trainer", "pause", "--reason", "the new prompt looks odd")
    day.send_groups(1)
    assert "the new prompt looks odd" in day.wait_for_alarm("paused")["what"]
    day.find_cause("paused", "the new prompt looks odd")
    day.world.rollbus("trainer", "resume")
    day.wait_until_over("paused")


def worse_rewards(day: Day) -> None:
    day.send_groups(6, BAD)
    assert "fell by 0." in day.wait_for_alarm("reward")["what"]
    day.find_cause("reward", "0.100")
    day.send_groups(6)
    day.wait_until_over("reward")


def equal_rewards(day: Day) -> None:
    day.send_groups(3, EQUAL)
    assert "100% of the groups" in day.wait_for_alarm("no_signal")["what"]
    day.find_cause("no-signal", f"│ {day.groups} │ 3 │")
    day.send_groups(3)
    day.wait_until_over("no_signal")


def dead_broker(day: Day) -> None:
    kill(day.services["broker"])
    assert day.wait_for_alarm("broker")["subject"] == day.world.kafka
    day.find_cause("broker", "cannot be reached")
    start([day.services["broker"]])
    day.wait_until_over("broker")


INCIDENTS = (
    frozen_worker,
    killed_trainer,
    killed_sink,
    dead_clickhouse,
    bytes_that_are_no_record,
    no_worker,
    full_disk,
    wrong_clock,
    judge_that_hangs,
    paused_run,
    worse_rewards,
    equal_rewards,
    dead_broker,
)
