"""A file of examples → examples with an id, an input and what is expected; JSON, JSONL, CSV or Parquet."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollbus.harness.configuration import DatasetConfig
from rollbus.schemas.errors import ConfigurationError


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
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"dataset {file} cannot be read as {kind}: {error}") from error
    if not entries:
        raise ConfigurationError(f"dataset {file} has no examples")
    examples = tuple(_example(entry, index, config) for index, entry in enumerate(entries))
    ids = [example.id for example in examples]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise ConfigurationError(f"dataset {file}: two examples have the {config.id_key} {twice!r}")
    return examples


def repeated(examples: Sequence[Example], reps: int) -> Sequence[Example]:
    """Return the examples so many times, with ids that tell the repetitions apart."""
    if reps == 1:
        return examples
    return [replace(example, id=f"{example.id}_rep{number}") for number in range(reps) for example in examples]


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
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, list):
        raise ValueError("a list of examples is expected")
    return found


def _json_lines(path: Path) -> Iterable[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _csv(path: Path) -> Iterable[Any]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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
