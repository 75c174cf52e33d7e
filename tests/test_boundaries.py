"""Who may import whom: the parts meet on topics, and heavy libraries stay in the modules named for them."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.purity import PURE, file_of, offences, room_of

ROOT = Path(__file__).parents[1]
PARTS = ("schemas", "runtime", "producers", "streams", "consumers", "trainer")
MODULES = sorted(path.relative_to(ROOT) for part in (*PARTS, "rollbus") for path in (ROOT / part).rglob("*.py"))

ALLOWED_IMPORTS = {
    "schemas": {"schemas"},
    "runtime": {"schemas", "runtime"},
    "producers": {"schemas", "runtime", "producers"},
    "streams": {"schemas", "runtime", "streams"},
    "consumers": {"schemas", "runtime", "consumers"},
    "trainer": {"schemas", "runtime", "trainer"},
}
"""What each part may import of rollbus; the package root may import all."""

LIBRARY_HOMES = {
    "faust": ("streams/worker/transport.py", "streams/worker/app.py"),
    "mode": ("streams/worker/transport.py", "streams/worker/app.py"),
    "aiokafka": (
        "*kafka*",
        "streams/worker/*",
        "streams/exactly_once/*",
        "streams/operate/*",
        "streams/replay/plan/range_on_broker.py",
        "trainer/operate/*",
        "trainer/process.py",
        "rollbus/resample/requests.py",
    ),
    "clickhouse_connect": ("consumers/clickhouse/*", "rollbus/local/*"),
    "grpc": ("producers/imports/*",),
    "chdb": ("rollbus/local/*",),
    "torch": ("trainer/art_server/*", "trainer/grpo/*", "rollbus/demo/warm_start*.py"),
    "torchtune": ("trainer/art_server/*",),
    "transformers": ("trainer/art_server/*",),
    "art": ("trainer/art_server/arts_own/*", "trainer/backends/art_terms/groups.py", "trainer/backends/serverless/*"),
}
"""The only modules that may import a heavy library, by path."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at the top or inside a function."""
    for node in ast.walk(_tree(str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield node.module or ""


def test_a_part_imports_only_schemas_and_itself() -> None:
    wrong = []
    for path in MODULES:
        allowed = ALLOWED_IMPORTS.get(path.parts[0])
        for module in imports(path):
            first, _, rest = module.partition(".")
            if first in PARTS:
                wrong.append(f"{path} imports {module}; write rollbus.{module}")
            elif allowed is not None and first == "rollbus" and rest.partition(".")[0] not in allowed:
                wrong.append(f"{path} imports {module}; {path.parts[0]} may import {sorted(allowed)}")
    assert wrong == []


def test_heavy_libraries_stay_in_the_modules_named_for_them() -> None:
    wrong = []
    for path in MODULES:
        for module in imports(path):
            homes = LIBRARY_HOMES.get(module.partition(".")[0])
            if homes is not None and not any(fnmatch(str(path), home) for home in homes):
                wrong.append(f"{path} imports {module}")
    assert wrong == []


HEAVY = frozenset({"faust", "torch", "art", "chdb", "clickhouse_connect", "openai"})
RECORDS = {"fastavro", "rollbus.schemas.topics", "rollbus.schemas.records.events"}
NOT_LOADED = {
    "import rollbus": {*HEAVY, "yaml", "click"},
    "import rollbus.schemas": {*HEAVY, "yaml", "click"},
    "import rollbus.producers": {*HEAVY, "yaml", "click"},
    "import rollbus.settings": {*HEAVY, *RECORDS, "aiokafka", "asyncio"},
    "import rollbus.consumers.clickhouse.store.client": HEAVY - {"clickhouse_connect"} | {*RECORDS, "numpy", "pandas"},
    "import rollbus.trainer.art_server.control.local, rollbus.trainer.art_server.control.old_routes": {
        "art",
        "openai",
        "anthropic",
    },
    "import rollbus.local.stack": {*HEAVY, *RECORDS, "aiokafka"},
    "from rollbus.cli.root import rollbus; rollbus(['sql', 'list'], standalone_mode=False)": {
        *HEAVY,
        *RECORDS,
        "aiokafka",
        "pydantic",
    },
}
"""By program: what it must do without, because loading takes longer than what the program does."""


@pytest.mark.parametrize("program", NOT_LOADED)
def test_a_program_that_starts_often_loads_nothing_that_it_does_not_need(program: str) -> None:
    command = [sys.executable, "-c", f"import sys; {program}; print(*sys.modules, file=sys.stderr)"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    assert not NOT_LOADED[program] & set(loaded)


PATHS = frozenset(map(str, MODULES))
PURE_FILES = sorted(path for path in PATHS if room_of(path) is not None)


def test_a_pure_room_reaches_no_clock_chance_kafka_file_or_network() -> None:
    offences_by_path = {path: offences((ROOT / path).read_text(), path, PATHS) for path in PURE_FILES}
    assert {path: names for path, names in offences_by_path.items() if names} == {}


def test_every_pure_room_has_its_files() -> None:
    assert {room_of(path) for path in PURE_FILES} == set(PURE)
    for name, room in PURE.items():
        for pattern in (*room.files, *room.but_not):
            assert any(fnmatch(path, pattern) for path in PATHS), f"{name}: nothing is called {pattern}"


A_STAGE = "streams/stages/grouping/stage.py"
OFFENCES = {
    "a grouping stage that reads the clock": "import time\ndef close(rows):\n    return time.time()",
    "the clock under another name": "from time import time as now\ndef close(rows):\n    return now()",
    "a module under another name": "import time as clock\nclosed_ms = clock.monotonic()",
    "the wall clock of datetime": "from datetime import UTC, datetime as dt\nnow = dt.now(UTC)",
    "a function kept under a name": "import datetime\nnow = datetime.datetime.now\ndef close():\n    return now()",
    "the clock of the event loop": "import asyncio\nnow_s = asyncio.get_running_loop().time()",
    "a number drawn at random": "import random\nshare = random.random()",
    "an id that differs each time": "from uuid import uuid4\ngroup_id = str(uuid4())",
    "a Kafka client": "def send():\n    from aiokafka import AIOKafkaProducer",
    "a file": "text = open('rows.json').read()",
    "a file by its path": "def read(path):\n    return path.read_text()",
    "the environment": "import os\nspeed = os.environ['SPEED']",
    "a connection": "import socket",
    "a request": "import aiohttp",
}


@pytest.mark.parametrize("snippet", OFFENCES.values(), ids=OFFENCES)
def test_a_pure_file_that_reaches_outside_is_refused(snippet: str) -> None:
    assert offences(snippet, A_STAGE, PATHS)


KAFKA_MODULES = sorted(
    "rollbus." + path.removesuffix(".py").replace("/", ".")
    for path in PATHS
    if path.startswith("streams/") and "kafka" in path and not path.endswith("__init__.py")
)


@pytest.mark.parametrize("module", KAFKA_MODULES)
def test_a_pure_stage_that_imports_a_kafka_module_is_refused(module: str) -> None:
    package, _, name = module.rpartition(".")
    for snippet in (f"import {module}", f"from {package} import {name}", f"from {module} import anything"):
        assert offences(snippet, A_STAGE, PATHS), snippet


@pytest.mark.parametrize(
    "snippet",
    [
        "import random\ndef sample(rows, chance: random.Random):\n    return chance.sample(rows, 2)",
        "from datetime import UTC, datetime\nat = datetime.fromtimestamp(1, UTC)",
        "def close(rows, *, now_ms):\n    return now_ms",
    ],
)
def test_time_and_chance_as_arguments_are_pure(snippet: str) -> None:
    assert not offences(snippet, A_STAGE, PATHS)


def import_graph(name_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Return which imports which, even for types or inside a function, by a name for each file."""
    graph: dict[str, set[str]] = defaultdict(set)
    for path in PATHS:
        files = (file_of(module, PATHS) for module in _imported_names(_tree(path)))
        graph[name_of(path)] |= {name_of(file) for file in files if file is not None}
    return {name: imported - {name} for name, imported in graph.items()}


def room_in_its_part(path: str) -> str:
    return "/".join(path.split("/")[:2])


@pytest.mark.parametrize("name_of", [str, room_in_its_part])
def test_no_module_and_no_room_imports_itself_indirectly(name_of: Callable[[str], str]) -> None:
    try:
        TopologicalSorter(import_graph(name_of)).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle of imports: {' ← '.join(circle.args[1])}")


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield what a file imports; `from package import module` imports the module, and the package only names it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if file_of(inner, PATHS) is not None else node.module or ""


def test_a_public_class_name_has_one_meaning_in_the_whole_project() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(_tree(str(path))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
