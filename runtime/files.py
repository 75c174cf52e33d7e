"""A file that only its user may read, and that is there whole or not at all, wherever its writer is killed."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file in the place of an earlier one; a crash leaves the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
