"""The validation set and its interval: the same tasks for every version, and which versions are due."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.validation.validation import ValidationSet, due_versions, make_tasks, read_examples
from tests.builders import make_version

EXAMPLES = ({"id": "a", "question": "1+1"}, {"id": "b", "question": "2+2"})


def test_examples_are_played_in_turn_with_one_seed_per_attempt() -> None:
    tasks = make_tasks(ValidationSet("held-out", 5, seed=3, examples=EXAMPLES))
    assert [(task.example_id, task.attempt) for task in tasks] == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]
    assert len({task.seed for task in tasks}) == 5
    assert tasks[3].example["question"] == "2+2"


def test_an_agent_that_changes_its_task_changes_no_other_attempt() -> None:
    row: dict[str, Any] = {"id": "a", "tools": ["search"]}
    first, second = make_tasks(ValidationSet("held-out", 2, 0, (row,)))
    with pytest.raises(TypeError, match=r"task\.example is read-only"):
        first.example["id"] = "b"  # type: ignore[index]
    first.example["tools"].append("refund")
    assert (second.example, row["tools"]) == ({"id": "a", "tools": ["search"]}, ["search"])


def test_a_larger_set_begins_with_the_tasks_of_a_smaller_one() -> None:
    small, large = (make_tasks(ValidationSet("held-out", size, seed=3, examples=EXAMPLES)) for size in (4, 9))
    assert large[:4] == small
    assert make_tasks(ValidationSet("held-out", 4, seed=4, examples=EXAMPLES)) != small


def test_without_a_dataset_a_task_is_its_index_and_seed() -> None:
    tasks = make_tasks(ValidationSet("games", 3))
    assert [(task.index, task.example_id, task.attempt) for task in tasks] == [(0, "0", 0), (1, "1", 0), (2, "2", 0)]
    assert len({task.seed for task in tasks}) == 3


@given(st.integers(0, 2**40), st.integers(1, 50))
def test_every_seed_fits_what_servers_take(seed: int, episodes: int) -> None:
    assert all(0 <= task.seed < 2**31 for task in make_tasks(ValidationSet("held-out", episodes, seed)))


def test_the_name_of_a_set_depends_on_all_its_tasks() -> None:
    validation_set = ValidationSet("held-out", 4, 3, EXAMPLES)
    others = [
        ValidationSet("held-out", 5, 3, EXAMPLES),
        ValidationSet("held-out", 4, 4, EXAMPLES),
        ValidationSet("held-out", 4, 3, EXAMPLES[:1]),
    ]
    assert validation_set.content_hash == ValidationSet("held-out", 4, 3, tuple(map(dict, EXAMPLES))).content_hash
    assert validation_set.content_hash not in {other.content_hash for other in others}


def lineage(*, head: int, serving: int) -> Lineage:
    """Versions 0 to head, one upon the other."""
    new_lineage = Lineage()
    for version in range(head + 1):
        new_lineage.apply(make_version(version, version - 1 if version else None, state="candidate"))
    new_lineage.apply(make_version(serving, serving - 1 if serving else None))
    return new_lineage


def due(head: int, *measured: int, serving: int = 0, interval: int = 5) -> tuple[int, ...]:
    return due_versions(lineage(head=head, serving=serving), interval, measured)


def test_the_root_is_due_before_any_training() -> None:
    assert due(0) == (0,)
    assert due(3) == (0,)


def test_each_version_at_the_interval_is_due_once() -> None:
    assert due(4, 0) == ()
    assert due(5, 0) == (5,)
    assert due(9, 0, 5, serving=9) == ()
    assert due(16, 0, 5, serving=16) == (10, 15)


def test_history_from_before_the_first_measurement_is_left_alone() -> None:
    assert due(17, serving=17) == (15,)
    assert due(21, 15, serving=21) == (20,)


def test_a_serving_version_is_measured_before_its_descendants() -> None:
    assert due(10, serving=3) == (3, 10)
    assert due(10, 3, serving=3) == (10,)


def test_a_version_that_was_rolled_back_is_not_due() -> None:
    lineage_after_rollback = lineage(head=10, serving=0)
    for version in range(6, 11):
        lineage_after_rollback.apply(make_version(version, version - 1, state="rolled_back"))
    assert due_versions(lineage_after_rollback, 5, {0}) == (5,)
    lineage_after_rollback.apply(make_version(11, 5, state="candidate"))
    assert due_versions(lineage_after_rollback, 5, {0, 5}) == ()


def test_nothing_is_due_before_there_is_a_version() -> None:
    assert due_versions(Lineage(), 5, ()) == ()


def test_examples_are_read_from_json_lines_and_from_a_list(tmp_path: Path) -> None:
    lines, whole = tmp_path / "set.jsonl", tmp_path / "set.json"
    lines.write_text("\n\n".join(json.dumps(example) for example in EXAMPLES))
    whole.write_text(json.dumps(EXAMPLES))
    assert read_examples(lines) == read_examples(whole) == EXAMPLES


def test_only_a_newline_ends_a_line_of_json(tmp_path: Path) -> None:
    """Other separators of Unicode may stand in a string as they are."""
    path, example = tmp_path / "set.jsonl", {"question": "one\u2028two\x85three"}
    path.write_text(json.dumps(example, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    assert read_examples(path) == (example,)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("set.jsonl", '{"id": "a"}\n{"id": ', "line 2: not JSON"),
        ("set.jsonl", '{"id": "a"}\n[1]', "line 2: expected a dict"),
        ("set.json", '[{"id": "a"}, 7]', "row 2: an example is an object"),
        ("set.json", '{"id": "a"}', "expected a list"),
        ("set.jsonl", "\n", "has no example"),
        ("set.jsonl", '{"id": "a"}\n{"id": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 2: not JSON"),
        ("set.jsonl", '{"id": "a"}\n\n{"score": NaN}', "row 3: .* not JSON"),
        ("set.json", '[{"score": 1e999}]', "row 1: .* not JSON"),
        ("set.jsonl", '{"id": "\\ud800"}', "row 1: .* surrogates not allowed"),
    ],
    ids=[
        *("torn", "array", "number", "object", "empty", "nested", "NaN", "infinity", "half a character"),
    ],
)
def test_a_broken_dataset_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_examples(path)


def test_a_dataset_that_is_not_utf_8_is_a_configuration_error(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes('{"question": "Wie heißt du?"}\n'.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"set\.jsonl is not UTF-8"):
        read_examples(path)


def test_a_dataset_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_examples(tmp_path / "none.jsonl")
