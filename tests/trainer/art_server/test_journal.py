import json
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.trainer.art_server.checkpoints.checkpoint import save_checkpoint
from rollbus.trainer.art_server.checkpoints.journal import Failure, Journal, VersionStore, recover
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.backends.wire import to_json
from tests.models import load_model


def result(batch_hash: str, base: int, version: int) -> TrainResult:
    return TrainResult(batch_hash, base, version, "completed", ("t-1",), {"t-2": "overlong"}, {"loss": 0.5}, "x")


def checkpoint(store: VersionStore, base_model: Path, version: int, provenance: dict[str, Any]) -> None:
    model, config = load_model(base_model)
    store.directory.mkdir(parents=True, exist_ok=True)
    save_checkpoint(store.path(version), model, config, base=base_model, provenance=provenance)


def test_written_journal_lines_are_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.started("h1", 0)
    journal.done(result("h1", 0, 1))
    journal.started("h2", 1)
    journal.failed("h2", Failure("no", retriable=True))
    journal.started("h3", 1)
    journal.served(serving=0, head=1)
    again = Journal(tmp_path / "journal.jsonl")
    assert again.result("h1") == result("h1", 0, 1)
    assert again.failure("h2") == Failure("no", retriable=True)
    assert again.unfinished() == {"h3": 1}
    assert (again.serving, again.head) == (0, 1)


def test_a_completed_batch_moves_the_head(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.served(serving=0, head=0)
    journal.done(result("h1", 0, 1))
    assert (journal.serving, journal.head) == (0, 1)
    journal.served(serving=1)
    assert (journal.serving, journal.head) == (1, 1)
    journal.served(serving=0, head=0)
    assert (Journal(tmp_path / "journal.jsonl").serving, journal.head) == (0, 0)


def test_a_torn_last_line_is_cut_off_and_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.done(result("h1", 0, 1))
    path.write_bytes(path.read_bytes() + b'{"event": "done", "batch_ha')
    again = Journal(path)
    again.started("h2", 1)
    assert Journal(path).unfinished() == {"h2": 1}
    assert Journal(path).result("h1") is not None


def test_damage_in_the_middle_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "started", "batch_hash": "h1", "base_version": 0}\n{"eve\n{"event"}\n')
    with pytest.raises(DataLossError, match="line 2"):
        Journal(path)


@pytest.mark.parametrize("recorded", [True, False], ids=["of the same base", "of another base"])
def test_a_repeated_batch_is_not_settled_with_a_rolled_back_version(
    base_model: Path, tmp_path: Path, recorded: bool
) -> None:
    store, journal = VersionStore(tmp_path / "checkpoints"), Journal(tmp_path / "journal.jsonl")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    old = result("h1", 0 if recorded else 5, 1)
    made = {"version": 1, "parent": old.base_version, "batch_hash": "h1", "result": to_json(old)}
    checkpoint(store, base_model, 1, made)
    if recorded:
        journal.started("h1", 0)
        journal.done(old)
    journal.served(serving=0, head=0)
    journal.started("h1", 0)
    (note,) = recover(journal, store)
    assert "stopped before its checkpoint" in note
    assert journal.failure("h1") is not None
    assert journal.head == 0
    assert Journal(tmp_path / "journal.jsonl").head == 0


def test_a_batch_is_settled_with_the_checkpoint_of_its_last_attempt(base_model: Path, tmp_path: Path) -> None:
    """After a rollback it trains again, and its second checkpoint settles it."""
    store, journal = VersionStore(tmp_path / "checkpoints"), Journal(tmp_path / "journal.jsonl")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    for version in (1, 2):
        journal.served(serving=0, head=0)
        journal.started("h1", 0)
        made = result("h1", 0, version)
        provenance = {"version": version, "parent": 0, "batch_hash": "h1", "result": to_json(made)}
        checkpoint(store, base_model, version, provenance)
        (note,) = recover(journal, store)
        assert f"reached version {version}" in note
        assert journal.result("h1") == made
        assert journal.head == version
        assert not journal.unfinished()


def test_an_update_that_serves_moves_head_and_serving_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.served(serving=0, head=0)
    journal.started("h1", 0, serves=True)
    journal.done(result("h1", 0, 1))
    assert (journal.serving, journal.head) == (1, 1)
    journal.started("h2", 1, serves=True)
    journal.failed("h2", Failure("no", retriable=True))
    journal.started("h2", 1)
    journal.done(result("h2", 1, 2))
    again = Journal(tmp_path / "journal.jsonl")
    assert (again.serving, again.head) == (1, 2)


def test_an_open_batch_does_not_move_a_later_head_back(base_model: Path, tmp_path: Path) -> None:
    store, journal = VersionStore(tmp_path / "checkpoints"), Journal(tmp_path / "journal.jsonl")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    journal.started("h1", 0)
    late = result("h1", 0, 1)
    checkpoint(store, base_model, 1, {"version": 1, "parent": 0, "batch_hash": "h1", "result": to_json(late)})
    journal.done(result("h2", 0, 2))
    (note,) = recover(journal, store)
    assert "version 1" in note
    assert (journal.head, journal.result("h1")) == (2, None)
    assert not journal.unfinished()


def test_a_half_written_checkpoint_is_removed_and_its_batch_may_run_again(base_model: Path, tmp_path: Path) -> None:
    store, journal = VersionStore(tmp_path / "checkpoints"), Journal(tmp_path / "journal.jsonl")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    journal.started("h1", 0)
    torn = store.directory / ".tmp-0001"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"\x00")
    notes = recover(journal, store)
    assert [path.name for path in store.directory.iterdir()] == ["0000"]
    assert any(".tmp-0001" in note for note in notes)
    failure = journal.failure("h1")
    assert failure is not None
    assert failure.retriable


def test_a_checkpoint_that_is_shorter_than_its_header_says_is_removed(base_model: Path, tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "checkpoints")
    for version in range(2):
        checkpoint(store, base_model, version, {"version": version, "parent": None})
    weights = store.path(1) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert store.clean() == ["0001"]
    assert store.numbers() == [0]


def test_a_checkpoint_that_this_release_would_not_run_is_left_where_it_is(base_model: Path, tmp_path: Path) -> None:
    """An earlier one made it, and may run again."""
    store = VersionStore(tmp_path / "checkpoints")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    config = store.path(0) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_bytes()), "rope_scaling": {"rope_type": "yarn"}}))
    assert store.clean() == []
    assert store.numbers() == [0]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "rollbus.json"])
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_a_torn_one(
    base_model: Path, tmp_path: Path, name: str
) -> None:
    """As with another user's rights, too many open files, or a disk that fails."""
    store = VersionStore(tmp_path / "checkpoints")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    (store.path(0) / name).unlink()
    (store.path(0) / name).symlink_to(name)
    with pytest.raises(ConfigurationError, match=rf"{name} cannot be read .*nothing was removed"):
        store.clean()
    assert store.numbers() == [0]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "rollbus.json"])
def test_a_checkpoint_that_lacks_a_file_is_removed(base_model: Path, tmp_path: Path, name: str) -> None:
    store = VersionStore(tmp_path / "checkpoints")
    checkpoint(store, base_model, 0, {"version": 0, "parent": None})
    (store.path(0) / name).unlink()
    assert store.clean() == ["0000"]


def test_lineage_follows_parents_over_a_rollback(base_model: Path, tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "checkpoints")
    for version, parent in ((0, None), (1, 0), (2, 1), (3, 1)):
        checkpoint(store, base_model, version, {"version": version, "parent": parent})
    assert store.lineage(3) == [3, 1, 0]
    assert store.lineage(2) == [2, 1, 0]
    assert store.next_number() == 4
