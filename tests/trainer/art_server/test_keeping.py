"""What serves and what may go are decided one after the other: the serving checkpoint is never the one removed."""

import json
import threading
from pathlib import Path

import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.checkpoints.checkpoint import PROVENANCE
from rollbus.trainer.art_server.checkpoints.journal import Failure, Journal, VersionStore
from rollbus.trainer.art_server.checkpoints.keeping import Keeping
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.backends.wire import to_json
from tests.trainer.art_server.test_retention import store_of


class Service:
    """Serves what it is told, and lets others act at the moment between reading the weights and serving them."""

    def __init__(self, store: VersionStore, serving: int) -> None:
        self.store, self.serving = store, serving
        self.canary: int | None = None
        self.loaded = threading.Event()
        self.meanwhile: threading.Thread | None = None

    def serve(self, version: int) -> None:
        self.loaded.set()
        if self.meanwhile is not None:
            self.meanwhile.join(timeout=0.3)  # ends where nothing holds it back
        self.serving = version


def make_keeping(folder: Path, *, serving: int, head: int, newest: int | None = 1) -> tuple[Keeping, Service, Journal]:
    """Seven versions, each the parent of the next."""
    service = Service(store_of(folder / "checkpoints", 7), serving)
    journal = Journal(folder / "journal.jsonl")
    journal.served(serving=serving, head=head)
    return Keeping("agent", service, journal, Retention(newest)), service, journal


def test_a_version_that_is_about_to_serve_is_not_removed_under_it(tmp_path: Path) -> None:
    keeping, service, _ = make_keeping(tmp_path, serving=6, head=6)

    def retire() -> None:
        service.loaded.wait()
        keeping.retire(reference=0)

    service.meanwhile = threading.Thread(target=retire)
    service.meanwhile.start()
    keeping.serve(3)
    service.meanwhile.join()
    assert service.store.numbers() == [0, 2, 3, 5, 6], "the serving one, the head, and their parents"


def test_a_canary_stays_although_it_is_neither_served_to_all_nor_trained_on(tmp_path: Path) -> None:
    keeping, service, _ = make_keeping(tmp_path, serving=6, head=6)
    service.canary = 3
    keeping.retire(reference=0)
    assert service.store.numbers() == [0, 2, 3, 5, 6]


def test_the_version_that_serves_by_the_journal_is_not_removed(tmp_path: Path) -> None:
    """After a crash before the next line of the journal, the service starts with this version."""
    keeping, service, journal = make_keeping(tmp_path, serving=2, head=6)
    service.serving = 4
    keeping.retire(reference=0)
    assert journal.serving == 2
    assert service.store.numbers() == [0, 1, 2, 3, 4, 5, 6]


def test_the_version_served_before_stays_for_a_rollback(tmp_path: Path) -> None:
    keeping, service, _ = make_keeping(tmp_path, serving=2, head=6)
    keeping.serve(6)
    keeping.retire(reference=0)
    assert service.store.numbers() == [0, 1, 2, 5, 6]
    assert Journal(tmp_path / "journal.jsonl").served_before == 2


def test_versions_needed_only_by_an_earlier_one_go_when_another_serves(tmp_path: Path) -> None:
    keeping, service, _ = make_keeping(tmp_path, serving=3, head=6)
    keeping.serve(4)
    assert service.store.numbers() == [0, 1, 2, 3, 4, 5, 6], "no update has said what its KL penalty refers to"
    keeping.retire(reference=0)
    assert service.store.numbers() == [0, 2, 3, 4, 5, 6]
    keeping.serve(6)
    assert service.store.numbers() == [0, 3, 4, 5, 6], "4 served before, and 3 is its parent"
    keeping.serve(5)
    assert service.store.numbers() == [0, 4, 5, 6]


def test_serving_the_version_of_the_journal_writes_no_second_line(tmp_path: Path) -> None:
    keeping, service, _ = make_keeping(tmp_path, serving=6, head=6)
    journal_bytes = (tmp_path / "journal.jsonl").read_bytes()
    service.serving = 5
    keeping.serve(6)
    assert service.serving == 6
    assert (tmp_path / "journal.jsonl").read_bytes() == journal_bytes


def checkpoint_of(store: VersionStore, batch_hash: str, base: int, version: int) -> TrainResult:
    made = TrainResult(batch_hash, base, version, "completed", (), {}, {}, "")
    store.path(version).mkdir()
    provenance = {"version": version, "parent": base, "batch_hash": batch_hash, "result": to_json(made)}
    (store.path(version) / PROVENANCE).write_text(json.dumps(provenance))
    return made


FAILURE = Failure("nothing to train", retriable=False)


def test_an_update_that_serves_is_settled_by_its_checkpoint_and_serves(tmp_path: Path) -> None:
    keeping, service, journal = make_keeping(tmp_path, serving=6, head=6)
    journal.started("h", 6, serves=True)
    checkpoint = checkpoint_of(service.store, "h", 6, 7)
    assert keeping.settle("h", FAILURE) == checkpoint
    assert (service.serving, journal.serving, keeping.head()) == (7, 7, 7)


def test_an_update_that_left_no_checkpoint_is_settled_as_failed(tmp_path: Path) -> None:
    keeping, service, journal = make_keeping(tmp_path, serving=6, head=6)
    journal.started("h", 6, serves=True)
    assert keeping.settle("h", FAILURE) is None
    assert journal.failure("h") == FAILURE
    assert (service.serving, journal.serving, keeping.head()) == (6, 6, 6)


def test_a_version_without_a_checkpoint_is_not_served(tmp_path: Path) -> None:
    keeping, service, journal = make_keeping(tmp_path, serving=6, head=6)
    keeping.retire(reference=0)
    with pytest.raises(RejectedError, match="version 3 of agent has no checkpoint; retention removed it"):
        keeping.serve(3)
    with pytest.raises(RejectedError, match=r"version 9 of agent has no checkpoint$"):
        keeping.serve(9)
    assert (service.serving, journal.serving) == (6, 6)


def test_a_removal_by_a_client_keeps_versions_that_others_need(tmp_path: Path) -> None:
    keeping, service, _ = make_keeping(tmp_path, serving=3, head=6, newest=None)
    keeping.keep_only([1])
    assert service.store.numbers() == [0, 1, 2, 3, 5, 6]
    assert service.store.retired() == [4]
