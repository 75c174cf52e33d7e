"""Checkpoints that go: never one that something stands on, and never what is known of where it came from."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.settings import Settings
from rollbus.trainer.art_server.checkpoints.checkpoint import PROVENANCE
from rollbus.trainer.art_server.checkpoints.journal import VersionStore
from rollbus.trainer.backends.durable.retention import expendable
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.process import local_service_settings

CHAIN = {version: version - 1 if version else None for version in range(21)}


def test_the_newest_and_every_tenth_stay() -> None:
    gone = expendable(list(CHAIN), CHAIN, Retention(keep_newest=3, keep_every=10), in_use=(20, 20))
    assert gone == (*range(1, 10), *range(11, 18))


def test_without_a_limit_nothing_goes() -> None:
    assert expendable(list(CHAIN), CHAIN, Retention(keep_every=2), in_use=()) == ()


@given(
    st.integers(1, 5),
    st.none() | st.integers(1, 7),
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(st.integers(0, 20), unique=True, min_size=1),
)
def test_served_and_trained_versions_stay_with_their_parents(
    newest: int, every: int | None, serving: int, head: int, versions: list[int]
) -> None:
    gone = set(expendable(versions, CHAIN, Retention(newest, every), in_use=(serving, head)))
    assert not gone & {0, serving, head, CHAIN[serving], CHAIN[head], max(versions)}
    assert gone <= set(versions)
    again = [version for version in versions if version not in gone]
    assert expendable(again, CHAIN, Retention(newest, every), in_use=(serving, head)) == ()


def store_of(directory: Path, versions: int) -> VersionStore:
    store = VersionStore(directory)
    for version in range(versions):
        store.path(version).mkdir(parents=True)
        provenance = {"version": version, "parent": version - 1 if version else None, "batch_hash": f"b{version}"}
        (store.path(version) / PROVENANCE).write_text(json.dumps(provenance))
    return store


def test_the_lineage_outlives_the_checkpoints(tmp_path: Path) -> None:
    store = store_of(tmp_path, 6)
    for version in (1, 2, 4):
        store.retire(version)
    assert store.numbers() == [0, 3, 5]
    assert store.retired() == [1, 2, 4]
    assert store.lineage(5) == [5, 4, 3, 2, 1, 0]
    assert store.provenance(4)["batch_hash"] == "b4"


def test_the_origin_of_each_version_is_read_only_once(tmp_path: Path) -> None:
    store = store_of(tmp_path, 4)
    assert store.lineage(3) == [3, 2, 1, 0]
    for version in range(4):
        (store.path(version) / PROVENANCE).unlink()
    assert store.lineage(3) == [3, 2, 1, 0]
    assert store.origin(2).batch_hash == "b2"


def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    store = store_of(tmp_path, 3)
    store.retire(2)
    assert store.next_number() == 3


def test_a_crash_between_rename_and_removal_is_cleaned_up(tmp_path: Path) -> None:
    store = store_of(tmp_path, 2)
    (tmp_path / ".tmp-retired-0001").mkdir()
    assert ".tmp-retired-0001" in store.clean()


@pytest.mark.parametrize("changes", [{}, {"keep_checkpoints": None, "keep_every": 3}])
def test_a_model_in_the_trainer_has_the_settings_of_an_art_server(changes: dict[str, Any]) -> None:
    section = {"base_model": "base", "token": "the-token", "max_rows": 3, **changes}
    document = {"art_server": section, "stack": {"model_port": 8123}, "trainer": {"backend": {"type": "art-local"}}}
    settings = Settings.model_validate(document)
    server, local = settings.art_server_settings(Path("base")), local_service_settings(settings.trainer_settings())
    assert server.retention == (Retention(20, 50) if not changes else Retention(None, 3))
    names = ("model", "base_model", "directory", "port", "api_key", "retention", "tinker", "options")
    for name in names[:-1]:
        assert getattr(local, name) == getattr(server, name)
    assert local.options.max_rows == server.options.max_rows == 3
