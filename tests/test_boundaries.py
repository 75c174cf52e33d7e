"""Who may import whom: the parts meet on topics, and heavy libraries stay in the modules named for them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("schemas", "producers", "streams", "consumers", "trainer")
MODULES = sorted(path.relative_to(ROOT) for part in (*PARTS, "rollbus") for path in (ROOT / part).rglob("*.py"))

ALLOWED = {
    "schemas": {"schemas"},
    "producers": {"schemas", "producers"},
    "streams": {"schemas", "streams"},
    "consumers": {"schemas", "consumers"},
    "trainer": {"schemas", "trainer"},
}
"""What each part may import of rollbus; the package root may import all."""

LIBRARY_HOMES = {
    "faust": ("streams/transport.py", "streams/app.py", "streams/faust_*.py"),
    "mode": ("streams/transport.py", "streams/app.py", "streams/faust_*.py"),
    "aiokafka": (
        "*kafka*.py",
        "streams/transport.py",
        "streams/transaction.py",
        "streams/runner.py",
        "rollbus/local/kafka.py",
    ),
    "clickhouse_connect": ("consumers/clickhouse/*", "rollbus/local/*"),
    "chdb": ("rollbus/local/*",),
    "torch": ("trainer/service/*", "trainer/grpo/*", "trainer/backends/art_*.py", "rollbus/demo/warm_start*.py"),
    "torchtune": ("trainer/service/*",),
    "transformers": ("trainer/service/*", "trainer/backends/art_*.py"),
    "art": ("trainer/service/art_*.py", "trainer/backends/art_*.py"),
}
"""The only modules that may import a heavy library, by path."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_part_imports_only_schemas_and_itself(path: Path) -> None:
    allowed = ALLOWED.get(path.parts[0])
    for module in imports(path):
        first, _, rest = module.partition(".")
        assert first not in PARTS, f"{path} imports {module}; write rollbus.{module}"
        if allowed is not None and first == "rollbus":
            part = rest.partition(".")[0]
            assert part in allowed, f"{path} imports {module}; {path.parts[0]} may import {sorted(allowed)}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_heavy_libraries_stay_in_the_modules_named_for_them(path: Path) -> None:
    for module in imports(path):
        homes = LIBRARY_HOMES.get(module.partition(".")[0])
        assert homes is None or any(fnmatch(str(path), home) for home in homes), f"{path} imports {module}"


@pytest.mark.parametrize("package", ["rollbus", "rollbus.schemas", "rollbus.producers"])
def test_importing_what_an_agent_needs_loads_nothing_heavy(package: str) -> None:
    program = f"import sys, {package}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"faust", "torch", "art", "chdb", "clickhouse_connect", "openai", "yaml", "click"} & set(loaded)
