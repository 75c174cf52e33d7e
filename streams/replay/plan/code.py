"""Which code decided: the hash of every module and schema that a replay's bytes can depend on."""

import hashlib
from functools import cache
from pathlib import Path

import rollbus.schemas
import rollbus.streams

_OUTSIDE = ("kafka", "transport", "app.py", "worker", "metrics", "watchdog", "on_broker", "operate")
"""Parts of the paths of modules that move records and decide nothing."""


@cache
def code_hash() -> str:
    """Return the hash of the pure modules and the schemas as they are installed."""
    digest = hashlib.sha256()
    for folder in (rollbus.schemas.__file__, rollbus.streams.__file__):
        root = Path(folder or "").parent
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.avsc")]):
            name = path.relative_to(root).as_posix()
            if not any(part in name for part in _OUTSIDE):
                digest.update(f"{name}\x1f".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
