"""Whole epochs on the bus in memory: the same stages and the same trainer loop as live, in a second."""

import json
from pathlib import Path

from rollbus.harness import TrainingStatusEnum
from tests.harness.world import Endpoint, document, memory_bus, opened, read, run_epochs


async def test_two_epochs_are_played_grouped_trained_and_written_down(tmp_path: Path) -> None:
    config = read(tmp_path, document(tmp_path))
    bus, endpoint = memory_bus(config), Endpoint()
    async with opened(config, bus, endpoint) as made:
        statuses = await run_epochs(made, 2)
        view = made.log.view
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert len(endpoint.asked) == 2 * 3 * 2
    assert {request["model"] for request in endpoint.asked} == {"agent"}
    assert [len(step.trained) for step in view.completed.values()] == [6, 6]
    rows = [json.loads(line) for line in (tmp_path / "output" / "training_metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1]
    assert [row["num_trajectories"] for row in rows] == [6, 6]
    assert [row["avg_reward"] for row in rows] == [0.5, 0.5]
    assert (tmp_path / "output" / "reward_plot.png").stat().st_size > 1000
