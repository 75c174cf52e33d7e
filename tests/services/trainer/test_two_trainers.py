"""Two runs on one log, each with its own model, trainer and art-server: both train at once, and no view mixes them."""

import asyncio
import json
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from openai import AsyncOpenAI

import rollbus
from rollbus.consumers.clickhouse.questions.ids import UnknownIdError
from rollbus.consumers.clickhouse.questions.saved_questions import ask, list_queries, run_query
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from tests.services.art.fixtures import ArtServer, Launcher
from tests.services.stack.health_world import WAIT_S, World, make_world

pytestmark = pytest.mark.services

RUNS = ("north", "south")
"""Each is also the name of the run's model and the first word of its groups."""
GROUP_SIZE, GROUPS_PER_STEP, STEPS = 2, 2, 2


@pytest.fixture
def servers(art_launcher: Launcher, art_base_model: Path, tmp_path: Path) -> Iterator[dict[str, ArtServer]]:
    server_by_run = {
        name: ArtServer(art_launcher, art_base_model, tmp_path / f"art-{name}", options={"model": name})
        for name in RUNS
    }
    try:
        for server in server_by_run.values():
            server.start()
        yield server_by_run
    finally:
        for server in server_by_run.values():
            server.stop()


@pytest.fixture
def world(tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str) -> Iterator[World]:
    runs = [
        {
            "run_id": name,
            "model": name,
            "grouping": {"group_size": GROUP_SIZE},
            "batching": {"groups_per_step": GROUPS_PER_STEP, "max_off_policy_steps": 8},
        }
        for name in RUNS
    ]
    sections: dict[str, Any] = {
        "runs": runs,
        "worker": {"event_partitions": 2, "tick_interval_ms": 200},
        "trainer": {"backend": {"type": "art-server"}, "train": {"learning_rate": 1e-3}},
        "sink": {"linger_ms": 100},
    }
    with make_world(tmp_path, kafka, clickhouse, namespace, **sections) as test_world:
        yield test_world


async def play(world: World, servers: dict[str, ArtServer]) -> None:
    """Let one recorder's agents play groups of both models at once; the two tokens' parity makes rewards differ."""
    recorder = rollbus.init(bootstrap_servers=world.kafka, namespace=world.namespace, producer="both", logprobs="force")

    async def attempt(name: str, group: str, number: int) -> None:
        async with AsyncOpenAI(base_url=servers[name].model_url, api_key="none") as plain:
            client = recorder.wrap(plain, hide_injected=False)
            async with recorder.episode(
                task="letters", example_id=group, group_id=group, group_size=GROUP_SIZE
            ) as episode:
                seed = zlib.crc32(f"{group} {number}".encode())
                messages: Any = [{"role": "user", "content": f"choose a letter {group}"}]
                await client.chat.completions.create(model=name, messages=messages, max_tokens=4, seed=seed)
                episode.reward(float(number))

    try:
        for number in range(STEPS * GROUPS_PER_STEP):
            groups = [(name, f"{name}-{number}", place) for name in RUNS for place in range(GROUP_SIZE)]
            await asyncio.gather(*(attempt(*group) for group in groups))
        assert await asyncio.to_thread(recorder.flush, 120.0)
    finally:
        await asyncio.to_thread(recorder.close)


def other_than(name: str) -> str:
    (other,) = set(RUNS) - {name}
    return other


async def newest_version(server: ArtServer) -> int:
    """Return the version that a server has made last, which it serves."""
    client = server.client()
    try:
        versions = await client.versions()
    finally:
        await client.close()
    assert versions.head == versions.serving
    return int(versions.head or 0)


def fates_once_written(settings: ClickHouseSettings, values: dict[str, Any]) -> dict[str, list[tuple[str, str, int]]]:
    """Return each run's trajectories by fate and reason, when the sink has written the last step."""
    deadline = time.monotonic() + 120
    while True:
        fates = {}
        for name in RUNS:
            rows = run_query(settings, "fate_of_every_trajectory", values | {"run": name}).rows
            fates[name] = [(fate, reason, count) for fate, _, reason, count, _, _ in rows]
        trained = [sum(count for fate, _, count in rows if fate == "trained") for rows in fates.values()]
        if min(trained) == GROUP_SIZE * GROUPS_PER_STEP * STEPS or time.monotonic() > deadline:
            return fates
        time.sleep(0.3)


def test_two_trainers_of_one_log_are_separate_in_every_view(
    world: World, servers: dict[str, ArtServer], clickhouse: tuple[str, int]
) -> None:
    world.rollbus("topics", "create")
    world.start("worker", "worker", "run")
    world.start("sink", "sink", "run")
    for name, server in servers.items():
        world.start(f"trainer {name}", "trainer", "run", "--run", name, ROLLBUS_TRAINER__BACKEND__URL=server.url)
    asyncio.run(play(world, servers))

    def have_trained(picture: dict[str, Any]) -> bool:
        return {run["run_id"]: run["step"] for run in picture["health"]["runs"]} == dict.fromkeys(RUNS, STEPS)

    picture = world.until(have_trained, "two runs with two steps")
    trainers = [process for process in picture["health"]["processes"] if process["kind"] == "trainer"]
    assert sorted(trainer["holds"] for trainer in trainers) == [[f"run {name} of {name}"] for name in RUNS]
    assert {trainer["state"] for trainer in trainers} == {"working"}
    assert picture["health"]["problems"] == []

    for name, server in servers.items():
        assert asyncio.run(newest_version(server)) == STEPS
        assert not [path for path in server.directory.rglob("*") if path.name.startswith(other_than(name))]

    host, port = clickhouse
    settings = ClickHouseSettings(host=host, port=port, database=f"health_{world.namespace[2:8]}")
    values = {"namespace": world.namespace}
    fates = fates_once_written(settings, values)
    trained = GROUP_SIZE * GROUPS_PER_STEP * STEPS
    expected = [("trained", "", trained), ("dropped", "not_targeted", trained), ("all", "", 2 * trained)]
    assert fates == dict.fromkeys(RUNS, expected)
    for name in RUNS:
        about = values | {"run": name}
        statement = "SELECT max(group_id) FROM groups WHERE namespace = {namespace:String} AND run_id = {run:String}"
        ((group,),) = ask(settings, statement, about).rows
        for query in list_queries():
            parameters = {parameter.name: parameter.default for parameter in query.parameters}
            if "run" not in parameters:
                continue
            named = {parameter.name: group for parameter in query.ids if parameters[parameter.name] == ""}
            if any("replay" in parameter.kinds for parameter in query.ids):
                with pytest.raises(UnknownIdError, match="no replay"):
                    run_query(settings, query.name, about | named)
                continue
            rows = run_query(settings, query.name, about | named).rows
            is_mixed = other_than(name) in repr(rows).replace(f"model '{other_than(name)}' is not of this run", "")
            assert not is_mixed, f"{query.name} about {name}: {rows}"
    check_questions_about_models(world)
    check_page(world)


def check_questions_about_models(world: World) -> None:
    """Both models have a version 1, so no answer may add them up unasked."""
    refused = world.rollbus("sql", "run", "reward-by-policy-version", check=False)
    assert refused.returncode != 0
    assert "several models (north, south); say which with --run" in refused.stderr
    printed = world.rollbus("sql", "run", "reward-by-policy-version", "--run", "south", "-o", "json").stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert sum(row["trajectories"] for row in rows) == GROUP_SIZE * GROUPS_PER_STEP * STEPS


def check_page(world: World) -> None:
    world.start("page", "ui", "--port", "0")
    deadline = time.monotonic() + WAIT_S
    while not (address := re.search(r"http://\S+", world.log("page"))):
        assert time.monotonic() < deadline, world.log("page")
        time.sleep(0.1)

    def ask(question: str) -> list[dict[str, Any]]:
        with urlopen(f"{address[0]}api/ask/{question}") as answer:
            table = json.loads(answer.read())
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

    runs = [{"run_id": name, "newest_step": STEPS, "model": name} for name in RUNS]
    assert ask("runs") == runs
    trained_by = {}
    for name in RUNS:
        steps = ask(f"newest_steps?run={name}")
        assert [step["step"] for step in steps] == [2, 1]
        groups = [group for step in (1, 2) for group in ask(f"groups_of_step?run={name}&step={step}")]
        trained_by[name] = {group["group_id"] for group in groups}
        assert len(trained_by[name]) == GROUPS_PER_STEP * STEPS
        rewards = ask(f"thin_rewards?model={name}")
        assert sum(point["trajectories"] for point in rewards) == GROUP_SIZE * GROUPS_PER_STEP * STEPS
    assert not trained_by["north"] & trained_by["south"]
