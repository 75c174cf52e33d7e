"""Alarms begin and end once, and a heart does not harm the process that it is in."""

import asyncio
import logging
from typing import Any

import pytest

from rollbus.health.reporter import Alarms, HealthReporter, export_picture, leave_out_silence_of
from rollbus.local.process.ports import find_free_port
from rollbus.runtime import metrics
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.problem import Problem
from rollbus.runtime.health.heart import Heart, Report
from rollbus.runtime.health.server import MetricsServer
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError
from tests.health.test_picture import draw, make_beat
from tests.waiting import until


def problem(subject: str, what: str = "it is silent") -> Problem:
    return Problem("silence", subject, what, "start it again")


def away() -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=f"127.0.0.1:{find_free_port()}")


def test_an_alarm_is_sent_at_its_beginning_and_its_end_only() -> None:
    alarms = Alarms()
    assert [change.state for change in alarms.compare((problem("a"),), 1)] == ["firing"]
    assert list(alarms.compare((problem("a", "it is silent for longer"),), 2)) == []
    changes = list(alarms.compare((problem("b"),), 3))
    assert [(change.state, change.problem.subject) for change in changes] == [("firing", "b"), ("resolved", "a")]
    assert changes[0].body() == {
        "text": "[firing] silence: it is silent → start it again",
        "alarm": {
            "state": "firing",
            "at_ms": 3,
            "alarm": "silence",
            "subject": "b",
            "what": "it is silent",
            "remedy": "start it again",
        },
    }


def test_a_process_that_looks_does_not_call_itself_silent() -> None:
    waiting = Problem("waiting", "a", "its work has not moved", "look at its log")
    assert leave_out_silence_of("a", (problem("a"), problem("b"), waiting)) == (problem("b"), waiting)
    assert leave_out_silence_of(None, (problem("a"),)) == (problem("a"),)


def test_a_problem_that_hovers_around_its_limit_is_one_alarm() -> None:
    alarms = Alarms()
    states = [
        [change.state for change in alarms.compare((problem("a"),) if is_seen else (), at_ms, hold_ms=100)]
        for at_ms, is_seen in [(0, True), (50, False), (60, True), (70, False), (169, False), (170, False), (180, True)]
    ]
    assert states == [["firing"], [], [], [], [], ["resolved"], ["firing"]]


def test_a_clock_that_is_set_back_does_not_hold_an_alarm_for_ever() -> None:
    alarms = Alarms()
    states = [
        [change.state for change in alarms.compare((problem("a"),) if is_seen else (), at_ms, hold_ms=100)]
        for at_ms, is_seen in [(900_000, True), (900_050, False), (10, False), (109, False), (110, False)]
    ]
    assert states == [["firing"], [], [], [], ["resolved"]]


async def test_a_broker_that_is_away_ends_no_other_alarm() -> None:
    states: list[Any] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(body: Any) -> None:
        states.append((body["alarm"]["state"], body["alarm"]["alarm"]))
        loop.call_soon_threadsafe(stop.set)

    watch = HealthReporter(away(), "t.", AlarmLimits(), 0.05, tell, lambda: 1)
    list(watch.alarms.compare((problem("worker-1"),), 1))
    await asyncio.wait_for(watch.run(stop), 120)
    assert states == [("firing", "broker")]
    assert set(watch.alarms.firing) == {("silence", "worker-1"), ("broker", watch.connection.bootstrap_servers)}


async def test_a_failed_webhook_gets_the_alarm_again_while_watching_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollbus.health.reporter.FIRST_PAUSE_S", 0.01)
    alarm_names: list[Any] = []
    told_once, stop = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(body: Any) -> None:
        alarm_names.append(body["alarm"]["alarm"])
        if len(alarm_names) < 3:
            raise OSError("503")
        loop.call_soon_threadsafe(told_once.set)

    watch = HealthReporter(away(), "t.", AlarmLimits(), 0.05, tell, lambda: 1)
    running = asyncio.create_task(watch.run(stop))
    await asyncio.wait_for(told_once.wait(), 120)
    stop.set()
    await running
    assert alarm_names[:3] == ["broker"] * 3
    assert [key[0] for key in watch.alarms.firing] == ["broker"]


async def test_a_broker_that_is_away_is_logged_once_and_the_process_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbus.runtime.health.heart.RETRY_S", 0.01)

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if record.name == "rollbus.runtime.health.heart"]

    heart = Heart(away(), "t.", "sink", "0.1.0")
    with caplog.at_level(logging.DEBUG, "rollbus.runtime.health.heart"):
        async with heart.beating(Report):
            await until(lambda: len(levels()) >= 3, "it does not try again")
    assert levels()[:3] == ["WARNING", "DEBUG", "DEBUG"]
    assert "no heartbeat can be written, and this process looks dead" in caplog.text


def test_prometheus_sees_no_silence_of_a_replaced_process() -> None:
    dead, other = make_beat(age_s=120.0), make_beat("sink", age_s=120.0)
    export_picture(draw(dead, other, make_beat(started_s=60.0)))
    exported = {
        sample.labels["process"]: sample.value for sample in next(iter(metrics.BEAT_AGE_SECONDS.collect())).samples
    }
    assert exported == {"worker@here:7-60.0": 1.0, "sink@here:7-1000.0": 120.0}


async def test_a_port_that_is_taken_ends_the_start_with_its_name() -> None:
    server = MetricsServer("127.0.0.1", 0, metrics=str, live=lambda: None)
    port = await server.start()
    try:
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 for /metrics is taken"):
            async with Heart(away(), "t.", "sink", "0.1.0", metrics_port=port).beating(Report):
                pytest.fail("it started all the same")
    finally:
        await server.stop()
