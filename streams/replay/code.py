"""Which code decided: the hash of every module and schema that a replay's bytes can depend on."""

import hashlib
from functools import cache
from pathlib import Path

import rollbus.schemas
import rollbus.streams

_OUTSIDE = ("kafka", "transport", "app.py", "worker", "metrics", "watchdog")
"""Parts of names of modules that move records and decide nothing."""


@cache
def code_hash() -> str:
    """Return the hash of the pure modules and the schemas as they are installed."""
    found = hashlib.sha256()
    for folder in (rollbus.schemas.__file__, rollbus.streams.__file__):
        root = Path(folder or "").parent
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.avsc")]):
            if not any(part in path.name for part in _OUTSIDE):
                found.update(f"{path.relative_to(root)}\x1f".encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:32]
