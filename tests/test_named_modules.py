"""Modules that a text names exist: programs in strings, replaced names, commands of Makefiles, pages.

A renaming moves imports, which the types check; a name in a text breaks in silence, often where no daily test looks.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_boundaries import ROOT

DOTTED_NAME = re.compile(r"(?<![\w./-])(?:rollbus|tests|benchmarks)(?:\.(?!__|md\b)[A-Za-z]\w*)+(?![\w/])")
NAMED_IN = ("**/*.py", "docs/**/*.md", "*.md", "**/Makefile", "**/*.mk", "*.toml", "**/*.yaml", "**/*.yml")
FOLDERS = "trainer", "streams", "schemas", "runtime", "consumers", "producers", "rollbus", "tests", "benchmarks", "docs"
TOPS_OF_THE_PACKAGE = frozenset({"trainer", "streams", "schemas", "runtime", "consumers", "producers"})


def find_module(parts: list[str]) -> tuple[Path, list[str]]:
    """Return the file of the longest part of a dotted name that is a module, and what follows it."""
    inside = parts[1:] if parts[0] == "rollbus" and parts[1] in TOPS_OF_THE_PACKAGE else parts
    for length in range(len(inside), 0, -1):
        path = ROOT.joinpath(*inside[:length])
        for file in (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyx")):
            if file.is_file():
                return file, inside[length:]
        if path.is_dir():
            return path, inside[length:]
    return ROOT, inside


def find_unknown_names(text: str) -> Iterator[str]:
    """Yield the dotted names that are neither modules nor named in the module that they begin with.

    `rollbus.` also begins labels, files and topics, so only what goes on with one of its rooms is a module's name.
    """
    for name in set(DOTTED_NAME.findall(text)):
        file, attributes = find_module(name.split("."))
        if not attributes or file == ROOT / "rollbus" / "__init__.py":
            continue
        if not file.is_file() or not re.search(rf"\b{attributes[0]}\b", file.read_text()):
            yield name


def find_replaced_names(source: str) -> Iterator[str]:
    """Yield what is replaced by its name in an imported module, dotted: of `setattr(module, "NAME", …)`."""
    tree, module_by_alias = ast.parse(source), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module_by_alias |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr"),
                args=[ast.Name(id=alias), ast.Constant(value=str(name)), *_],
            ) if alias in module_by_alias:
                yield f"{module_by_alias[alias]}.{name}"


def test_every_name_that_a_test_replaces_exists() -> None:
    assert not {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for replaced in find_replaced_names(path.read_text())
        for name in find_unknown_names(replaced)
    }


def test_a_replaced_name_is_found_by_its_module() -> None:
    source = "from rollbus.trainer import process as trainer\nmonkeypatch.setattr(trainer, 'gone', 1)"
    assert list(find_replaced_names(source)) == ["rollbus.trainer.process.gone"]


def test_every_module_named_in_a_text_exists() -> None:
    assert not {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in (ROOT, *(ROOT / folder for folder in FOLDERS))
        for pattern in NAMED_IN
        for path in folder.glob(pattern.removeprefix("**/") if folder == ROOT else pattern)
        if path != Path(__file__)
        for name in find_unknown_names(path.read_text())
    }


@pytest.mark.parametrize(
    ("text", "unknown_names"),
    [
        ("python -m rollbus.trainer.process", []),
        ("python -m rollbus.trainer.no_such_process", ["rollbus.trainer.no_such_process"]),
        ('monkeypatch.setattr("rollbus.trainer.process.run_trainer", fake)', []),
        ('monkeypatch.setattr("rollbus.trainer.process.gone", fake)', ["rollbus.trainer.process.gone"]),
        ("PYTHONPATH=. python -m benchmarks.delivery.late 400", ["benchmarks.delivery.late"]),
        ("write rollbus.yaml; tests/readers says more", []),
    ],
)
def test_a_name_of_nothing_is_found(text: str, unknown_names: list[str]) -> None:
    assert list(find_unknown_names(text)) == unknown_names
