"""A trainer that dies at any point of a step leaves one version and one optimizer step behind it.

Every call to the service and every line of the journal is a point, before it and after it. After the kill nothing more
is said to the service, as by a process that is gone; the next backend has the folder and the service.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import DataLossError, UnavailableError
from rollbus.trainer.backends.durable.journaled import JOURNAL_NAME
from rollbus.trainer.backends.protocol import TrainRequest
from rollbus.trainer.backends.tinker.backend import TinkerBackend, TrainedModel
from rollbus.trainer.backends.tinker.memory import MemoryTinker
from tests.contracts.backend import MODEL, make_request, submit_and_wait

TRAINED = TrainedModel(MODEL, "tiny", lora_rank=8, vocabulary=64)
FIRST, SECOND = make_request(0, batch_hash="a" * 32), make_request(1, batch_hash="b" * 32)


class KilledError(UnavailableError):
    """Ends a process, as far as these tests go."""


class Killer:
    """Raises at the n-th point and at all after it."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.points = at, list[str]()

    def __call__(self, point: str) -> None:
        self.points.append(point)
        if self.at is not None and len(self.points) > self.at:
            raise KilledError(f"killed at {point}")


class KilledBackend(TinkerBackend):
    """Its journal's lines are points too."""

    killer = Killer()

    def _record(self, entry: dict[str, Any]) -> None:
        self.killer(f"{entry['kind']} before")
        super()._record(entry)
        self.killer(f"{entry['kind']} after")


async def train_until_killed(service: MemoryTinker, folder: Path, killer: Killer, request: TrainRequest) -> None:
    """Start, train, and leave the folder as a dead process does."""
    backend = KilledBackend(TRAINED, service, folder)
    backend.killer = service.fault = killer
    with suppress(UnavailableError):
        await backend.start()
        await submit_and_wait(backend, request)
    backend._release_folder()


async def train_undisturbed(service: MemoryTinker, folder: Path, request: TrainRequest) -> TinkerBackend:
    """Start, train, and end."""
    service.fault = Killer()
    backend = TinkerBackend(TRAINED, service, folder)
    await backend.start()
    await submit_and_wait(backend, request)
    await backend.close()
    return backend


async def list_points(tmp_path: Path) -> list[str]:
    """Return the points of a start and the second step."""
    service, killer = MemoryTinker(vocabulary=64), Killer()
    await train_undisturbed(service, tmp_path / "points", FIRST)
    await train_until_killed(service, tmp_path / "points", killer, SECOND)
    return killer.points


async def test_a_kill_at_every_point_of_a_step_leaves_one_version_and_one_step(tmp_path: Path) -> None:
    reference = MemoryTinker(vocabulary=64)
    await train_undisturbed(reference, tmp_path / "reference", FIRST)
    weights_tree = (await train_undisturbed(reference, tmp_path / "reference", SECOND)).weights_tree
    points = await list_points(tmp_path)
    assert {"optim_step after", "saving before", "save_state after", "trained before", "trained after"} <= set(points)
    made_again = {}
    for at, point in enumerate(points):
        service, folder = MemoryTinker(vocabulary=64), tmp_path / str(at)
        await train_undisturbed(service, folder, FIRST)
        await train_until_killed(service, folder, Killer(at), SECOND)
        backend = await train_undisturbed(service, folder, SECOND)
        assert backend.weights_tree.versions == weights_tree.versions, point
        final = [service.find(backend.weights_tree.checkpoints[version]) for version in (1, 2)]
        assert final == [reference.find(weights_tree.checkpoints[version]) for version in (1, 2)], point
        assert final[1].steps == 2, point
        made_again[point] = service.steps - 2
    assert made_again["optim_step before"] == 0
    assert made_again["optim_step after"] == made_again["save_state before"] == 1, "made in vain, and used by none"
    assert made_again["save_state after"] == made_again["trained before"] == 0, "what was saved is the version"


@pytest.mark.parametrize("at", range(6))
async def test_a_kill_anywhere_in_the_first_start_leaves_a_working_backend(tmp_path: Path, at: int) -> None:
    service = MemoryTinker(vocabulary=64)
    await train_until_killed(service, tmp_path, Killer(at), FIRST)
    backend = await train_undisturbed(service, tmp_path, FIRST)
    assert backend.weights_tree.versions == {0: (None, None), 1: (0, FIRST.batch_hash)}
    assert service.find(backend.weights_tree.checkpoints[1]).steps == 1


async def test_a_rolled_back_attempts_state_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    """The attempt died before its state was recorded, and the model went another way meanwhile."""
    service = MemoryTinker(vocabulary=64)
    await train_undisturbed(service, tmp_path, FIRST)
    points = await list_points(tmp_path)
    await train_until_killed(service, tmp_path, Killer(points.index("save_state after")), SECOND)
    lines = (tmp_path / JOURNAL_NAME).read_text().splitlines()
    assert json.loads(lines[-1])["kind"] == "saving"
    with (tmp_path / JOURNAL_NAME).open("a") as journal:
        journal.write(json.dumps({"kind": "promoted", "version": 0, "rollback": True}) + "\n")
    other = make_request(0, batch_hash="c" * 32)
    backend = await train_undisturbed(service, tmp_path, other)
    assert backend.weights_tree.versions[2] == (0, other.batch_hash)
    assert backend.weights_tree.head == 2


@pytest.mark.parametrize("line", [b"\x00\x00", b"[1]", b'{"kind": "trai'], ids=["zeros", "no object", "half a line"])
def test_damage_in_the_middle_of_the_journal_is_named(tmp_path: Path, line: bytes) -> None:
    journal = tmp_path / JOURNAL_NAME
    journal.write_bytes(b'{"kind": "base", "state": "s"}\n' + line + b'\n{"kind": "retired", "version": 1}\n')
    with pytest.raises(DataLossError, match=r"journal\.jsonl is damaged at line 2: .*; restore it from a backup"):
        TinkerBackend(TRAINED, MemoryTinker(), tmp_path)
