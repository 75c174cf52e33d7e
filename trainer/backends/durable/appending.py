"""Append a line to a journal, whole or not at all even after a crash or an error; and read its entries."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import DataLossError
from rollbus.schemas.ids import parse_json


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


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the JSON object of each line, none if there is no file; cut off a last line that a crash left unfinished.

    DataLossError if the damage is anywhere else.
    """
    entries = []
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            entry = parse_json(line)
            if not isinstance(entry, dict):
                raise ValueError(f"it holds a {type(entry).__name__}, not an object")
        except ValueError as error:
            raise DataLossError(
                f"journal {path} is damaged at line {number}: {error}; restore it from a backup"
            ) from error
        entries.append(entry)
    return entries


def _whole_lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.splitlines()
