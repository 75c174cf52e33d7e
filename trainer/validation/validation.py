"""A validation set and an interval → the tasks of an evaluation, and the versions that are due to be measured.

Pure, except for reading the dataset. The tasks depend on the set and its seed alone: examples in turn, each attempt
with its own seed. So every version plays the same tasks, and any evaluation can be repeated.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import content_hash, parse_json
from rollbus.schemas.read_only import ReadOnlyMapping
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.validation.agents import EvaluationTask

SEED_BITS = 31
"""What the seed field of every OpenAI-compatible server takes."""


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """The tasks of every version."""

    name: str
    episodes: int
    seed: int = 0
    examples: Sequence[Mapping[str, Any]] = ()
    """Played in turn; without any, the agent chooses by a task's index and seed."""

    @property
    def content_hash(self) -> str:
        """Hash of the set: evaluations of the same set can be compared."""
        return content_hash([self.name, self.episodes, self.seed, [dict(example) for example in self.examples]])


def make_tasks(validation_set: ValidationSet) -> tuple[EvaluationTask, ...]:
    """Return the tasks of a set, in order."""
    count = max(len(validation_set.examples), 1)
    return tuple(_task(validation_set, index, *divmod(index, count)) for index in range(validation_set.episodes))


def _task(validation_set: ValidationSet, index: int, attempt: int, row: int) -> EvaluationTask:
    example = validation_set.examples[row] if validation_set.examples else {}
    example_id = str(example.get("id", row if validation_set.examples else index))
    attempt = attempt if validation_set.examples else 0
    digest = blake2b(f"{validation_set.seed}\x1f{example_id}\x1f{attempt}".encode(), digest_size=8).digest()
    return EvaluationTask(
        index=index,
        example_id=example_id,
        attempt=attempt,
        seed=int.from_bytes(digest) % 2**SEED_BITS,
        example=ReadOnlyMapping(copy.deepcopy(dict(example)), "task.example"),
    )


def due_versions(lineage: Lineage, interval_steps: int, measured: Collection[int]) -> tuple[int, ...]:
    """Return the versions to measure, in order: what candidates must beat, then those at the interval, oldest first.

    Versions before the newest one measured are not due any more; if nothing was measured, only the newest is due.
    """
    if lineage.head is None:
        return ()
    path = list(lineage.lags(lineage.head))
    root = len(path) - 1
    marks = [version for lag, version in enumerate(path) if (root - lag) % interval_steps == 0]
    measured_marks = [mark for mark in marks if mark in measured]
    newer = marks[: marks.index(measured_marks[0])] if measured_marks else marks[:1]
    return (*_find_to_beat(lineage, measured, newer), *reversed(newer))


def _find_to_beat(lineage: Lineage, measured: Collection[int], newer: Sequence[int]) -> Sequence[int]:
    """Return the serving version if candidates follow it and it was not measured."""
    serving = lineage.serving
    if serving is None or serving == lineage.head or serving in measured or serving in newer:
        return ()
    return (serving,)


def read_examples(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the rows of a JSON list or of JSON lines; ConfigurationError names the line that is not an object."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"validation dataset {path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"validation dataset {path} is not UTF-8: {error}; save it as UTF-8") from error
    if path.suffix == ".json":
        rows = enumerate(_parse_json(path, 1, text, list), start=1)
    else:
        lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
        rows = ((number, _parse_json(path, number, line, dict)) for number, line in lines)  # type: ignore[assignment]
    examples = []
    for number, row in rows:
        if not isinstance(row, dict):
            raise ConfigurationError(
                f"validation dataset {path}, row {number}: an example is an object, got {row!r:.60}"
            )
        _require_hashable(path, number, row)
        examples.append(row)
    if not examples:
        raise ConfigurationError(f"validation dataset {path} has no example")
    return tuple(examples)


def _require_hashable(path: Path, number: int, row: dict[str, Any]) -> None:
    """Raise ConfigurationError for NaN, infinity or half a character: neither is JSON, and the set needs a hash."""
    try:
        content_hash(row)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"validation dataset {path}, row {number}: its value is not JSON ({error})") from error


def _parse_json(path: Path, number: int, text: str, kind: type) -> Any:
    try:
        examples = parse_json(text)
    except ValueError as error:
        raise ConfigurationError(f"validation dataset {path}, line {number}: not JSON ({error})") from error
    if not isinstance(examples, kind):
        raise ConfigurationError(
            f"validation dataset {path}, line {number}: expected a {kind.__name__}, got {examples!r:.60}"
        )
    return examples
