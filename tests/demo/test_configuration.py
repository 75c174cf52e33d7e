"""The demo's settings are those of any other run, and its base model is known by what made it."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rollbus.demo.base_model import WarmStartSettings, base_model_folder, ensure_base_model
from rollbus.demo.configuration import write_settings
from rollbus.demo.game.job import GROUP_SIZE, GameJob
from rollbus.demo.run import Demo, DemoOptions
from rollbus.schemas.errors import ConfigurationError
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.stack_settings import StackSettings


def test_the_written_file_is_what_every_process_reads(tmp_path: Path) -> None:
    stack = StackSettings(
        data_dir=tmp_path,
        kafka_port=1001,
        clickhouse_port=1003,
        art_port=1004,
        model_port=1005,
    )
    written = write_settings(tmp_path / "settings.yaml", GameJob(), stack, tmp_path / "model")
    assert load_settings(Settings, tmp_path / "settings.yaml", {}).with_credentials({}) == written
    assert written.art_server.token is not None
    assert written.stream_settings().kafka.bootstrap_servers == "127.0.0.1:1001"
    assert written.sink_settings().clickhouse.port == 1003
    assert written.trainer_settings(GameJob.run).train.learning_rate == 4e-4
    assert written.art_server_settings(tmp_path / "model").port == 1005
    assert written.run(GameJob.run).grouping.group_size == GROUP_SIZE


def test_a_base_model_is_found_again_by_its_settings(tmp_path: Path) -> None:
    settings = WarmStartSettings(seed=3)
    assert base_model_folder(settings, tmp_path) == base_model_folder(WarmStartSettings(seed=3), tmp_path)
    assert base_model_folder(settings, tmp_path) != base_model_folder(replace(settings, seed=4), tmp_path)
    base_model_folder(settings, tmp_path).mkdir()
    assert ensure_base_model(settings, tmp_path) == base_model_folder(settings, tmp_path)


def test_the_demo_replaces_no_folder_that_it_did_not_make(tmp_path: Path) -> None:
    options = DemoOptions(GameJob.amounts, data_dir=tmp_path)
    options.folder.mkdir()
    (options.folder / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="was not made by the demo"):
        Demo(GameJob(), options, Console(quiet=True))._fresh_stack()
    assert (options.folder / "thesis.txt").exists()


def test_each_demo_begins_in_an_empty_folder_on_five_ports(tmp_path: Path) -> None:
    demo = Demo(GameJob(), DemoOptions(GameJob.amounts, data_dir=tmp_path), Console(quiet=True))
    first = demo._fresh_stack()
    (first.data_dir / "left-over").touch()
    second = demo._fresh_stack()
    assert not (second.data_dir / "left-over").exists()
    assert len({second.kafka_port, second.clickhouse_port, second.art_port, second.model_port}) == 4
