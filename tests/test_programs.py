"""Benchmarks and examples, which no test runs and no type checker reads, import what is there."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(path for part in ("benchmarks", "examples") for path in (ROOT / part).rglob("*.py"))
OURS = ("rollbus.", "benchmarks.", "tests.")


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from a module of this repository."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(OURS):
            for alias in node.names:
                yield node.module, alias.name


def find_module(name: str) -> Path | None:
    """Return the file of a module of this repository, as an import finds it; None if there is none."""
    parts = name.split(".")
    roots = [ROOT, ROOT / "rollbus"] if parts[0] == "rollbus" else [ROOT]
    places = [root.joinpath(*(parts[1:] if parts[0] == "rollbus" else parts)) for root in roots]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.exists()), None)


def defined_names(path: Path) -> set[str]:
    """Return the names that a module has once it is imported."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.TypeAlias):
            names.add(node.name.id)
    return names


def test_what_a_program_imports_is_there() -> None:
    names_by_module: dict[str, set[str]] = {}
    missing = []
    for program in PROGRAMS:
        for module, name in imported_names(ast.parse(program.read_text())):
            if module not in names_by_module:
                file = find_module(module)
                names_by_module[module] = set() if file is None else defined_names(file)
            if name not in names_by_module[module] and find_module(f"{module}.{name}") is None:
                missing.append(f"{program.relative_to(ROOT)}: {module} has no {name}")
    assert missing == []


def test_an_import_of_what_is_not_there_is_seen() -> None:
    tree = ast.parse("from rollbus.runtime.machine import no_such_name, count_bound_cores")
    assert list(imported_names(tree)) == [
        ("rollbus.runtime.machine", "no_such_name"),
        ("rollbus.runtime.machine", "count_bound_cores"),
    ]
    file = find_module("rollbus.runtime.machine")
    assert file == ROOT / "runtime" / "machine.py"
    assert "no_such_name" not in defined_names(file)
    assert "count_bound_cores" in defined_names(file)
