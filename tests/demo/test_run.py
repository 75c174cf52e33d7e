"""Two demos do not share a folder."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rollbus.demo.game.job import Game
from rollbus.demo.run import Demo, DemoOptions
from rollbus.schemas.errors import ConfigurationError


def demo(data_dir: Path, seed: int = 0) -> Demo:
    return Demo(Game(), DemoOptions(Game.amounts, seed, data_dir=data_dir), Console(file=io.StringIO()))


def test_a_demo_leaves_the_folder_of_one_that_plays_alone(tmp_path: Path) -> None:
    with demo(tmp_path).hold_folder():
        playing = demo(tmp_path)._fresh_stack().data_dir / "kafka"
        playing.mkdir()
        with pytest.raises(ConfigurationError, match="another demo plays in"), demo(tmp_path).hold_folder():
            raise AssertionError
        assert playing.exists()
        with demo(tmp_path, seed=1).hold_folder():
            demo(tmp_path, seed=1)._fresh_stack()
    with demo(tmp_path).hold_folder():
        demo(tmp_path)._fresh_stack()
    assert not playing.exists()
