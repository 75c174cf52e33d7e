"""A file of examples → examples with an id, an input and what is expected; JSON, JSONL, CSV or Parquet."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollbus.harness.configuration import DatasetConfig
from rollbus.schemas.errors import ConfigurationError

ENCODING = "utf-8-sig"
"""A byte order mark, as spreadsheets write it, is part of no key."""


@dataclass(frozen=True, slots=True)
class Example:
    """One problem."""

    id: str
    input: Any
    """The question, or the whole entry where it has none."""
    expected: Any
    entry: Any
    """As the file has it."""


def load_dataset(config: DatasetConfig, path: Path | None = None) -> tuple[Example, ...]:
    """Return the examples of a file (`path` in place of the configured one); raises ConfigurationError."""
    file = path or config.file_path
    kind = (None if path is not None else config.type) or file.suffix.lstrip(".").lower()
    if kind not in READERS:
        raise ConfigurationError(f"dataset {file}: {kind or 'no ending'} is none of {', '.join(READERS)}; set `_type`")
    try:
        entries = list(READERS[kind](file))
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"dataset {file} cannot be read as {kind}: {error}") from error
    if not entries:
        raise ConfigurationError(f"dataset {file} has no examples")
    if missing := _missing(entries, config):
        raise ConfigurationError(f"dataset {file}: {missing}")
    examples = tuple(_example(entry, index, config) for index, entry in enumerate(entries))
    ids = [example.id for example in examples]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise ConfigurationError(f"dataset {file}: two examples have the {config.id_key} {twice!r}")
    return examples


def repeated(examples: Sequence[Example], reps: int) -> Sequence[Example]:
    """Return the examples `reps` times, with a different id for each repetition."""
    if reps == 1:
        return examples
    return [replace(example, id=f"{example.id}_rep{number}") for number in range(reps) for example in examples]


def _missing(entries: Sequence[Any], config: DatasetConfig) -> str | None:
    """Report a configured key that is missing and is not a default; some examples may have no answer."""
    structure, rows = config.structure, [entry for entry in entries if isinstance(entry, dict)]
    needed = [("id_key", config.id_key)] if "id_key" in config.model_fields_set else []
    if "question_key" in structure.model_fields_set and not structure.disable:
        needed.append(("question_key", structure.question_key))
    for name, key in needed:
        for index, row in enumerate(rows):
            if key not in row:
                return f"example {index} has no {key!r}, the configured {name}; it has {', '.join(map(str, row))}"
    answer = structure.answer_key
    if rows and "answer_key" in structure.model_fields_set and not any(answer in row for row in rows):
        return f"no example has {answer!r}, the configured answer_key; they have {', '.join(map(str, rows[0]))}"
    return None


def _example(entry: Any, index: int, config: DatasetConfig) -> Example:
    if not isinstance(entry, dict):
        return Example(str(index), entry, None, entry)
    structure = config.structure
    whole = structure.disable or structure.question_key not in entry
    return Example(
        id=str(entry.get(config.id_key, index)),
        input=entry if whole else entry[structure.question_key],
        expected=entry.get(structure.answer_key),
        entry=entry,
    )


def _json(path: Path) -> Iterable[Any]:
    found = json.loads(path.read_text(encoding=ENCODING))
    if not isinstance(found, list):
        raise ValueError("a list of examples is expected")
    return found


def _json_lines(path: Path) -> Iterable[Any]:
    lines = path.read_text(encoding=ENCODING).split("\n")  # a string may hold the other ends of lines
    return [_json_line(line, number) for number, line in enumerate(lines, start=1) if line.strip()]


def _json_line(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error


def _csv(path: Path) -> Iterable[Any]:
    with path.open(newline="", encoding=ENCODING) as file:
        rows = list(csv.DictReader(file))
    for index, row in enumerate(rows):
        if None in row or None in row.values():
            raise ValueError(f"example {index} has more or fewer cells than the first line has names")
    return rows


def _parquet(path: Path) -> Iterable[Any]:
    from pyarrow import parquet

    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


READERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "json": _json,
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet,
}
