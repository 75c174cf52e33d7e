"""Which files decide without the outside world, and what a file would have to name to reach it.

`PURE` is the one table: a room, its files, and the other rooms that it may import. A file of a pure room names no
clock, no chance, no Kafka, no file and no network, under any alias, and imports rollbus modules of its allowed rooms
only. So no pure file can reach the world through another one.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True, slots=True)
class Room:
    """A folder, or a list of files, that is pure."""

    files: tuple[str, ...]
    """Patterns of paths."""
    may_import: tuple[str, ...] = ()
    """Names of other rooms."""
    but_not: tuple[str, ...] = ()
    """Patterns of files in the folder that touch the world, and are named for it."""


PURE: Mapping[str, Room] = {
    "schemas/records": Room(
        (
            "schemas/records/*",
            "schemas/drop_words.py",
            "schemas/ids.py",
            "schemas/errors.py",
            "schemas/namespaces.py",
            "schemas/topics.py",
            "schemas/limits.py",
            "schemas/numbers.py",
            "schemas/read_only.py",
            "schemas/principals.py",
            "schemas/signing.py",
            "schemas/shares.py",
        ),
        ("schemas/codec",),
    ),
    "runtime/health/alarms": Room(("runtime/health/alarms/*.py",), ("schemas/records",)),
    "rollbus/health": Room(
        ("rollbus/health/picture.py", "rollbus/health/funnel/*.py"),
        ("schemas/records", "runtime/health/alarms", "streams/rewards/registry", "producers/turns"),
        but_not=("rollbus/health/funnel/counting.py", "rollbus/health/funnel/show.py"),
    ),
    "streams/state": Room(("streams/state/*",), ("schemas/records", "schemas/codec")),
    "streams/rewards": Room(
        ("streams/rewards/*",),
        ("schemas/records",),
        but_not=("streams/rewards/endpoint.py", "streams/rewards/registry.py"),
    ),
    "streams/stages/delivery/evidence": Room(("streams/stages/delivery/evidence/*",), ("schemas/records",)),
    "rollbus/estimates": Room(
        tuple(
            f"rollbus/estimates/{name}.py"
            for name in ("divergence", "episode", "estimators", "expected_reward", "overlap")
        ),
        ("trainer/ledger",),
    ),
    "streams/stages": Room(
        ("streams/stages/*",),
        (
            *("schemas/records", "schemas/codec", "streams/state", "streams/rewards", "streams/rewards/registry"),
            "streams/stages/delivery/evidence",
        ),
    ),
    "streams/core": Room(
        (
            *("streams/exactly_once/batch.py", "streams/exactly_once/processing.py", "streams/exactly_once/rounds.py"),
            "streams/pipeline.py",
        ),
        (
            *("schemas/records", "schemas/codec", "streams/state", "streams/rewards", "streams/rewards/registry"),
            "streams/stages",
        ),
    ),
    "streams/replay/plan": Room(
        ("streams/replay/plan/*",),
        ("schemas/records", "schemas/codec", "streams/state", "streams/stages", "streams/core"),
        but_not=tuple(f"streams/replay/plan/{name}.py" for name in ("code", "processes", "range_on_broker")),
    ),
    "streams/replay/decide": Room(
        ("streams/replay/decide/*", "streams/replay/compare/*"),
        (
            *("schemas/records", "schemas/codec", "streams/state", "streams/rewards", "streams/rewards/registry"),
            *("streams/stages", "streams/core", "streams/replay/plan"),
        ),
        but_not=("streams/replay/compare/live.py",),
    ),
    "trainer/grpo": Room(
        ("trainer/grpo/*.py",),
        ("schemas/records", "trainer/train_config"),
    ),
    "trainer/ledger": Room(
        (
            "trainer/ledger/ledger.py",
            "trainer/ledger/lineage.py",
            "trainer/validation/promotion.py",
            "trainer/validation/evaluation.py",
        ),
        ("schemas/records", "trainer/backends/protocol", "trainer/train_config"),
    ),
    "producers/turns": Room(("producers/turns/*.py",), ("schemas/records", "schemas/codec")),
    "producers/capture/apis": Room(
        (
            *("producers/capture/surface.py", "producers/capture/chat.py", "producers/capture/chat_stream.py"),
            *("producers/capture/completions.py", "producers/capture/responses.py", "producers/capture/attributes.py"),
            *("producers/capture/hidden_fields.py", "producers/capture/without_tokens.py"),
        ),
        ("schemas/records", "producers/turns"),
    ),
    "producers/episode/open_calls": Room(("producers/episode/open_calls.py",), ("schemas/records",)),
    "producers/imports/formats": Room(
        ("producers/imports/formats/*.py",),
        (
            "schemas/records",
            "schemas/codec",
            "producers/turns",
            "producers/capture/apis",
            "producers/episode/open_calls",
        ),
    ),
}
LEAVES: Mapping[str, tuple[str, ...]] = {
    "schemas/codec": (
        *("schemas/codec.py", "schemas/avro/*.py", "schemas/record_makers.py", "schemas/soundness.py"),
        "runtime/cancelling.py",
    ),
    "streams/rewards/registry": ("streams/rewards/registry.py",),
    "trainer/backends/protocol": ("trainer/backends/protocol.py",),
    "trainer/train_config": ("trainer/train_config.py",),
}
"""Files that pure rooms may import although they are not pure: the codec reads its schemas and compiles functions when
it is imported, the registry reads the installed packages when a worker starts, and the protocol only names types."""

WORLD = (
    *("time", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    *("random", "secrets", "uuid.uuid1", "uuid.uuid4", "numpy.random", "os.urandom"),
    *("torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.multinomial", "torch.manual_seed"),
    *("aiokafka", "kafka", "confluent_kafka", "faust", "mode"),
    *("open", "io.open", "io.FileIO", "os", "pathlib", "shutil", "tempfile", "glob", "fcntl", "mmap", "sqlite3"),
    *("socket", "ssl", "http", "urllib.request", "httpx", "requests", "aiohttp", "websockets", "subprocess"),
    *("asyncio.open_connection", "asyncio.start_server", "asyncio.create_subprocess_exec"),
    *("builtins.open", "__import__", "importlib.import_module", "eval", "exec"),
)
"""What reaches outside, by its full name; everything below a name is meant too."""
BUILT_IN = ("open", "__import__", "eval", "exec")
"""Names of the world that need no import."""
TYPES_ONLY = ("random.Random", "os.PathLike", "pathlib.PurePath", "pathlib.PurePosixPath")
"""Names below those that are only types: a generator that is handed in is an argument, not chance."""
FILE_METHODS = ("read_text", "write_text", "read_bytes", "write_bytes")
"""Of a path, whatever the path is called."""


def room_of(path: str) -> str | None:
    """Return the pure room that a file is in."""
    for name, room in PURE.items():
        if _matches(path, room.files) and not _matches(path, room.but_not):
            return name
    return None


def offences(source: str, path: str, modules: frozenset[str]) -> list[str]:
    """Return what a pure file names or imports that it must not; `modules` are the paths of the product's files."""
    room, tree = room_of(path), ast.parse(source)
    assert room is not None, path
    allowed = (room, *PURE[room].may_import)
    offence_lines = [f"line {line}: {name} reaches outside" for line, name in _names_of_the_world(tree)]
    for line, module in _own_imports(tree):
        file = file_of(module, modules)
        if file is not None and not file.endswith("__init__.py") and not _is_in(file, allowed):
            offence_lines.append(f"line {line}: {room} must not import {module}; it may import {', '.join(allowed)}")
    return offence_lines


def _is_in(file: str, rooms: tuple[str, ...]) -> bool:
    return room_of(file) in rooms or any(_matches(file, LEAVES.get(name, ())) for name in rooms)


def _names_of_the_world(tree: ast.Module) -> Iterator[tuple[int, str]]:
    origins: dict[str, str] = {}
    """What a name in this file stands for, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                origins[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                if _is_world(alias.name) and not _has_types(alias.name):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if _is_world(f"{node.module}.{alias.name}"):
                    yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (name := _full_name(node.value, origins)) is not None:
            origins |= {target.id: name for target in node.targets if isinstance(target, ast.Name)}
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FILE_METHODS:
            yield node.lineno, f".{node.attr}()"
        elif isinstance(node, ast.Call) and not node.args and ast.unparse(node.func).endswith("_loop().time"):
            yield node.lineno, "the clock of the event loop"
        elif isinstance(node, ast.Attribute | ast.Name) and node not in inner:
            name = _full_name(node, origins)
            if name is not None and _is_world(name):
                yield node.lineno, name


def _full_name(node: ast.expr, origins: Mapping[str, str]) -> str | None:
    """Return what an expression such as `dt.now` names in full; None where it is not such an expression."""
    if isinstance(node, ast.Name):
        return origins.get(node.id) or (node.id if node.id in BUILT_IN else None)
    if isinstance(node, ast.Attribute) and (owner := _full_name(node.value, origins)) is not None:
        return f"{owner}.{node.attr}"
    return None


def _is_world(name: str) -> bool:
    return _below(name, WORLD) and not _below(name, TYPES_ONLY)


def _has_types(module: str) -> bool:
    """Say whether a module of the world has names that are only types: then its uses are looked at, not its import."""
    return any(name.startswith(f"{module}.") for name in TYPES_ONLY)


def _below(name: str, names: tuple[str, ...]) -> bool:
    return any(name == parent_name or name.startswith(f"{parent_name}.") for parent_name in names)


def _own_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every rollbus module that a file imports, also inside functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("rollbus"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rollbus"):
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def file_of(module: str, modules: frozenset[str]) -> str | None:
    """Return the file of a rollbus module; None for a name that is not a module."""
    path = "/".join(module.split(".")[1:])
    for candidate in (f"{path}.py", f"{path}/__init__.py", f"rollbus/{path}.py", f"rollbus/{path}/__init__.py"):
        if candidate in modules:
            return candidate
    return None


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)
