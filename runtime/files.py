"""A file that is there whole or not at all, wherever its writer is killed, and a lock that ends with its holder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE, BY_UMASK = 0o600, 0o666
"""Who may read a new file: its user alone, or whom the user's umask lets."""


def write_whole(path: Path, text: str, mode: int = PRIVATE) -> None:
    """Write a file in the place of an earlier one; a crash leaves the old one or the new one."""
    with draft_of(path, mode) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def draft_of(path: Path, mode: int = PRIVATE) -> Iterator[Path]:
    """Yield a file to write, which takes the place of the one at `path` unless the body raises."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))  # as private from the first letter on
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Let one process at a time into the body, and one thread of it; the others wait."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
