"""What each release left with its users is read by this code: nothing is lost, and work goes on from it."""

import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rollbus.consumers.clickhouse.questions.ids import KINDS, IdParameter
from rollbus.consumers.clickhouse.questions.saved_questions import list_queries, run_query
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import load_migrations, migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.trainer.art_server.checkpoints.checkpoint import read_weights
from rollbus.trainer.art_server.checkpoints.journal import Journal
from rollbus.trainer.art_server.learner.torch_service import TorchService
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.backends.model_settings import ServiceSettings
from tests.services.conftest import clickhouse
from tests.upgrade import FAILURE, OPTIONS, RELEASES, RESULT, names_of_settings, read_clickhouse, train

__all__ = ["clickhouse"]

REMEDY = "what users have would break; if this release is not out yet, run python -m tests.upgrade --write VERSION"
release = pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)


def test_there_is_data_of_a_release() -> None:
    assert [folder.name for folder in RELEASES] != []


@release
def test_a_settings_file_of_a_release_is_accepted(folder: Path) -> None:
    settings = load_settings(
        Settings, folder / "settings.yaml", {"CHECKER_KEY": "k" * 32, "ROLLBUS_OWNER_KEY": "o" * 32}
    )
    assert settings.model_fields_set


@release
def test_every_setting_of_a_release_still_exists(folder: Path) -> None:
    assert set((folder / "settings.txt").read_text().split()) <= set(names_of_settings()), REMEDY


@release
def test_no_migration_of_a_release_has_changed(folder: Path) -> None:
    released, _ = read_clickhouse(folder)
    now = {migration.id: migration.checksum for migration in load_migrations()}
    assert {number: now.get(number) for number in released} == released, REMEDY


@pytest.mark.services
@release
def test_a_database_of_a_release_is_brought_up_to_date_with_every_row(
    folder: Path, clickhouse: tuple[str, int]
) -> None:
    host, port = clickhouse
    settings = ClickHouseSettings(host=host, port=port, database=f"upgrade_{uuid.uuid4().hex[:8]}")
    released, tables = read_clickhouse(folder)
    migrate(settings, tuple(migration for migration in load_migrations() if migration.id in released))
    client = ClickHouse(settings)
    for table, rows in tables.items():
        client.insert(table, rows)
    before = content(client, tables)
    assert all(count for count, _ in before.values())
    migrate(settings)
    assert content(client, tables) == before
    fates = run_query(settings, "fate_of_every_trajectory", {"namespace": "rollbus.", "run": "main"})
    assert fates.rows
    for query in list_queries():
        run_query(settings, query.name, {parameter.name: first_id(tables, parameter) for parameter in query.ids})
    client.close()


def first_id(tables: Mapping[str, list[dict[str, Any]]], parameter: IdParameter) -> Any:
    """Return an id that the rows of a release have."""
    table, column = KINDS[parameter.kinds[0]].tables[0]
    return tables[table][0][column]


def content(client: ClickHouse, tables: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Rows and the sum of their offsets, by table."""
    return {table: client.query(f"SELECT count(), sum(kafka_offset) FROM {table}")[1][0] for table in tables}


@release
def test_a_service_goes_on_from_the_checkpoints_of_a_release(folder: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shutil.copytree(folder / "art", tmp_path / "art")
    service = TorchService(ServiceSettings("agent", folder / "base", tmp_path / "art", options=OPTIONS))
    try:
        assert service.sampler.loaded() == (1,)
        answer = service.sampler.submit([5, 6], SamplingParameters(max_tokens=2), 1).result(timeout=120)
        assert answer.version == 1
        train(service, base_version=1)
        assert service.store.numbers() == [0, 1, 2]
        before, after = (read_weights(service.store.path(version), service.config) for version in (1, 2))
        assert any(not torch.equal(before[name], after[name]) for name in before)
    finally:
        service.close()


@release
def test_the_journal_of_a_release_is_read_to_the_same_outcomes(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "journal.jsonl", tmp_path)
    journal = Journal(tmp_path / "journal.jsonl")
    assert (journal.result("b1"), journal.failure("b2"), dict(journal.unfinished())) == (RESULT, FAILURE, {"b3": 1})
