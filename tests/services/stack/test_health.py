"""What an operator sees of processes that die, freeze and end, through the installed commands, on a real broker."""

import asyncio
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from rollbus.health import held_answer
from rollbus.health.reading import open_health
from rollbus.health.reporter import HealthReporter
from rollbus.health.watch import HealthWatch
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.heart import Heart, Report
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.kafka.topics_on_broker import delete_topics, ensure_topics, topics_on_broker
from tests.console import ROLLBUS
from tests.installs import own_environment
from tests.services.stack.health_world import BEAT_S, World, make_world, problems, states
from tests.services.streams.fixtures import stream_settings
from tests.waiting import until_found

pytestmark = pytest.mark.services

METRICS = {"interval_s": BEAT_S, "metrics_ports": dict.fromkeys(("worker", "trainer", "sink"), 0)}


def watch_in_a_terminal(world: World) -> str:
    """Return what `rollbus top` has drawn when it has looked once, and end it by Ctrl-C."""
    ours, theirs = pty.openpty()
    command = [ROLLBUS, "-c", "settings.yaml", "top", "--interval", "0.2"]
    process = subprocess.Popen(
        command,
        cwd=world.folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=own_environment(),
        start_new_session=True,
    )
    os.close(theirs)
    drawn = b""
    try:
        while b"releases" not in drawn:
            drawn += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return drawn.decode(errors="replace")


def silent(picture: dict[str, Any]) -> list[str]:
    return [problem["what"] for problem in picture["health"]["problems"] if problem["alarm"] == "silence"]


def test_frozen_killed_and_dead_processes_do_not_look_healthy(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace, health=METRICS) as world:
        world.rollbus("topics", "create")
        assert states(world.health()) == {}
        worker = world.start("worker", "worker", "run")
        trainer = world.start("trainer", "trainer", "run")
        world.start("sink", "sink", "run")
        all_work = dict.fromkeys(("worker", "trainer", "sink"), "working")
        picture = world.until(lambda picture: states(picture) == all_work, "not all work")
        (seen,) = [process for process in picture["health"]["processes"] if process["kind"] == "worker"]
        assert (seen["pid"], seen["version"]) == (worker.pid, "0.1.0")
        assert "scoring[0]" in seen["holds"]
        assert picture["health"]["problems"] == []
        for process in picture["health"]["processes"]:
            with urlopen(process["metrics_url"]) as answer:
                assert f'kind="{process["kind"]}"' in answer.read().decode()

        os.kill(worker.pid, signal.SIGSTOP)
        picture = world.until(lambda picture: "silence" in problems(picture), "the frozen worker looks healthy")
        assert f"`kill -CONT {worker.pid}` lets it go on" in problems(picture)["silence"]
        os.kill(worker.pid, signal.SIGCONT)
        world.until(lambda picture: states(picture) == all_work, "the worker does not go on")

        world.kill("sink")
        world.kill("trainer")
        picture = world.until(lambda picture: len(silent(picture)) == 2, "what was killed looks healthy")
        assert any(what.startswith(f"trainer {trainer.pid} on ") for what in silent(picture))
        assert any("it held run main of agent" in what for what in silent(picture))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
        world.until(
            lambda picture: states(picture)["worker"] == "stopped" and len(silent(picture)) == 2, "it looks dead"
        )


def test_doctor_reports_the_users_rights_and_the_clock_difference(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace) as world:
        missing = world.rollbus("doctor", check=False)
        assert missing.returncode == 1
        assert "more do not exist; run `rollbus topics create`" in " ".join(missing.stdout.split())
        world.rollbus("topics", "create")
        output = " ".join(world.rollbus("doctor", check=False).stdout.split())
        assert f"all exist at {kafka} with the right settings" in output
        assert "may write heartbeats, read steps, and see the lag of every group" in output
        assert "this machine's is 0." in output
        assert world.health()["health"]["processes"] == []
        assert "nothing is recorded yet, and no process runs" in watch_in_a_terminal(world)


async def test_only_a_process_that_an_error_ends_is_dead_with_its_cause(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings)

    async def live(kind: str, error: Exception | None = None) -> None:
        heart = Heart(settings.kafka, namespace, kind, "0.1.0", interval_s=0.2)
        async with heart.beating(lambda: Report(work=1)):
            async with open_health(settings.kafka, namespace) as health, asyncio.timeout(120):
                while kind not in [process.kind for process in (await health.picture()).processes]:
                    pass
            if error is not None:
                raise error

    await live("sink")
    with pytest.raises(ConfigurationError):
        await live("trainer", ConfigurationError("the base was rolled back"))
    async with open_health(settings.kafka, namespace) as health, asyncio.timeout(120):
        picture = await health.picture()
        while "silence" not in [problem.alarm for problem in picture.problems]:
            picture = await health.picture()
    (problem,) = picture.problems
    assert problem.what.startswith("trainer ")
    assert problem.what.endswith("it ended: the base was rolled back")
    assert {process.kind: process.state for process in picture.processes} == {"sink": "stopped", "trainer": "silent"}


async def test_a_watch_keeps_its_connection_and_finds_topics_that_come_later(
    kafka: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_answer, "ANSWER_HOLDS_S", 0.0)
    settings = stream_settings(kafka, namespace)
    watch = HealthWatch(settings.kafka, namespace)
    assert (await watch.ask()).processes == ()
    await ensure_topics(settings)

    async def look() -> list[tuple[str, str]]:
        return [(process.kind, process.state) for process in (await watch.ask()).processes]

    heart = Heart(settings.kafka, namespace, "sink", "0.1.0", interval_s=0.1)
    async with heart.beating(lambda: Report(work=3)):  # late beats on a busy machine are silence, until the next one
        await until_found(look, "no beat is seen", is_enough=lambda beats: beats == [("sink", "working")])
    await watch.close()
    away = HealthWatch(settings.kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:9"}), namespace)
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
            await away.ask()


async def test_alarms_that_began_before_the_topics_see_what_comes_later(kafka: str, namespace: str) -> None:
    """In a cluster all processes begin at once; and topics may be made again."""
    settings = stream_settings(kafka, namespace)
    changes: list[tuple[str, str]] = []

    def tell(body: Any) -> None:
        changes.append((body["alarm"]["state"], body["alarm"]["alarm"]))

    async def seen() -> list[tuple[str, str]]:
        return changes

    async def until_seen(*wanted: tuple[str, str]) -> None:
        await until_found(seen, f"not seen: {wanted}", is_enough=lambda changes: set(wanted) <= set(changes))
        changes.clear()

    reporter = HealthReporter(settings.kafka, namespace, AlarmLimits(hold_s=0), 0.1, tell, wall_clock_ms)
    running = asyncio.create_task(reporter.run(stop := asyncio.Event()))
    await until_seen(("firing", "no_topics"))
    heart = Heart(settings.kafka, namespace, "sink", "0.1.0", interval_s=0.1)
    for _ in range(2):
        await ensure_topics(settings)
        await until_seen(("resolved", "no_topics"))
        async with heart.beating(lambda: Report(trouble="no disk")):
            await until_seen(("firing", "trouble"))
        topics = [name for name in await topics_on_broker(settings) if name.startswith(namespace)]
        await delete_topics(settings, topics)
        await until_seen(("firing", "no_topics"))
    stop.set()
    await running
