"""Append a line to a file so that it is either all there after a crash or an error, or not at all."""

import os
from contextlib import suppress
from pathlib import Path


def append_line(path: Path, line: bytes) -> None:
    """Write the line and its newline, and sync. OSError leaves the file as it was: a full disk tears no line."""
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
