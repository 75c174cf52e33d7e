"""A command that is printed can be pasted into a shell, also where a folder has a space in its name."""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest

from rollbus.consumers.export.run import ExportRequest, load_line
from rollbus.consumers.export.writing import WrittenFile
from rollbus.nemo.runs.folder import RunRecord, what_next
from rollbus.runtime.machine import install_command
from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.base_models.source_files import require_source

ROOT = Path(__file__).parents[2]
FOLDERS = ("rollbus", "runtime", "streams", "producers", "consumers", "trainer")
BEFORE_A_PATH = re.compile(r"(--(config|data-dir|base-model|secrets|python)[ =]|ROLLBUS_SECRETS=|model import )$")


def command_in(text: str, beginning: str) -> list[str]:
    """Return the words of the command that begins so, as a shell takes them."""
    (line,) = [part for part in re.split(r"`|\n|, then", text) if beginning in part]
    return shlex.split(line[line.index(beginning) :])


def test_the_python_of_an_install_command_is_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python")
    assert "/opt/my env/bin/python" in shlex.split(install_command("'rollbus[ui]'"))


def test_what_is_next_after_finetuning_names_folders_as_one_word(tmp_path: Path) -> None:
    record = RunRecord("r", "config.yml", {}, "output", "agent", folder=tmp_path / "my runs" / "r")
    text = what_next(record)
    assert command_in(text, "rollbus finetune serve")[-2:] == ["--data-dir", str(tmp_path / "my runs")]
    assert command_in(text, "rollbus --config")[-1] == "up"
    assert len(command_in(text, "rollbus --config")) == 4


def test_an_adapters_import_names_its_folder_as_one_word(tmp_path: Path) -> None:
    adapter = tmp_path / "my adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigurationError) as refusal:
        require_source(adapter, "mine")
    assert command_in(str(refusal.value), "rollbus model import") == [
        *("rollbus", "model", "import", str(adapter), "--onto", "BASE")
    ]


@pytest.mark.parametrize("name", ["train.parquet", "train.jsonl"])
def test_the_line_that_loads_an_export_is_python_whatever_its_folder_is_called(name: str) -> None:
    folder = Path('/data/my "best" answers')
    request = ExportRequest(namespace="rollbus.", run="main", kind="trajectories", reader="hf")
    tree = ast.parse(load_line(request, folder, WrittenFile(name, 1, 2, "")))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert str(folder / name) in texts


def test_every_path_in_a_printed_command_is_quoted() -> None:
    unquoted, found = [], 0
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for text in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr)):
            for before, value in zip(text.values, text.values[1:], strict=False):
                is_text = isinstance(before, ast.Constant) and BEFORE_A_PATH.search(str(before.value))
                if is_text and isinstance(value, ast.FormattedValue):
                    found += 1
                    if "quote" not in ast.unparse(value):
                        unquoted.append(f"{path.relative_to(ROOT)}:{value.lineno}")
    assert not unquoted
    assert found > 5, "the places are found by what stands before them"
