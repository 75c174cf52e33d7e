"""What `rollbus status`, its JSON and the page say of a step that takes long, and of data that no worker assembles."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders import make_episode, make_started
from tests.services.stack.health_world import make_world, problems, send_records, states
from tests.services.stack.test_funnel import ask_page

pytestmark = pytest.mark.services

LONG_S = 3600
"""What a step of the memory backend pretends to take."""


def test_a_step_that_takes_long_is_named_instead_of_a_trainer_that_waits(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    sections: dict[str, Any] = {
        "runs": [{"run_id": "main", "batching": {"groups_per_step": 1}}],
        "trainer": {"backend": {"type": "memory", "step_s": LONG_S}},
        "health": {"interval_s": 2, "alarms": {"waiting_s": 2}},  # a beat of half a second is late on a loaded machine
        "worker": {"event_partitions": 1, "tick_interval_ms": 200},
    }
    with make_world(tmp_path, kafka, clickhouse, namespace, **sections) as world:
        world.rollbus("topics", "create")
        world.start("worker", "worker", "run")
        world.start("trainer", "trainer", "run")
        group = {"group_id": "g1", "group_size": 2, "example_id": None}
        events = [
            event
            for name, reward in (("a", 1.0), ("b", 0.0))
            for event in make_episode(name, reward=reward, start=group)
        ]
        send_records(kafka, f"{namespace}episode-events", events)
        picture = world.until(is_training_for_long, "the step is not open")
        status_text = " ".join(world.rollbus("status", check=False, COLUMNS="2000").stdout.split())
        page = ask_page(world)
        world.kill("trainer")  # asked to end, it would first end its step
    for answer in (picture, page):
        assert "step 1 of run main has been training for" in problems(answer)["long_step"]
        assert "it is the first → `rollbus trainer status` says what the backend does" in problems(answer)["long_step"]
        assert "trainer" not in problems(answer).get("waiting", "")
        assert states(answer)["trainer"] == "working"
    assert "long_step step 1 of run main has been training for" in status_text
    assert "docs/runbook.md#long-step" in status_text


def is_training_for_long(picture: dict[str, Any]) -> bool:
    """Whether a step is open for longer than `waiting_s`, in the log as in `status`, and its trainer beats."""
    is_long = any((run["open_age_ms"] or 0) > 2_000 for run in picture["health"]["runs"])
    return is_long and states(picture).get("trainer") == "working"


def test_unassembled_data_is_named_although_every_process_works(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace) as world:
        world.rollbus("topics", "create")
        world.start("worker", "worker", "run", "--stage", "grouping.main")
        send_records(kafka, f"{namespace}episode-events", [make_started("e1")])
        picture = world.until(lambda picture: "no worker" in problems(picture).get("no_process", ""), "nothing is said")
        status_text = " ".join(world.rollbus("status", check=False, COLUMNS="2000").stdout.split())
        page = ask_page(world)
        world.start("second worker", "worker", "run", "--stage", "assembly")
        world.until(lambda picture: "no_process" not in problems(picture), "it is said of data that is assembled")
    words = "no worker runs `assembly` (the workers run grouping.main)"
    assert words in status_text
    for answer in (picture, page):
        assert f"{words}, and episode-events has data" in problems(answer)["no_process"]
