"""Append a line to a file, whole or not at all even after a crash or an error; and read the lines."""

import os
from contextlib import suppress
from pathlib import Path


def append_line(path: Path, line: bytes) -> None:
    """Write the line and its newline, and sync. OSError leaves the file as it was."""
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(line + b"\n")
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, none if there is no file; cut off a last one that a crash left unfinished."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.splitlines()
