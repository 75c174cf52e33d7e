"""Of each key something is remembered, of the keys used last only, and a restart forgets the same ones."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.config import CurriculumConfig, GroupingConfig, RunConfig
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.state import recent_keys
from rollbus.streams.state.recent_keys import Recent
from rollbus.streams.state.rows import INT
from rollbus.streams.state.table import PartitionState
from tests.builders import make_group, make_score
from tests.stepper import Stepper


@pytest.fixture(autouse=True)
def three_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_keys, "MOST_KEYS", 3)


def restore_recent(rows: dict[bytes, bytes | None], changed: Recent[int]) -> Recent[int]:
    """What a changelog comes to, with the rows touched since."""
    rows.update(PartitionState(changed.table).drain())
    recent = Recent("r", INT)
    state = PartitionState(recent.table)
    for key in sorted(rows, reverse=True):
        state.restore(key, rows[key])
    recent.rebuild()
    return recent


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.booleans()), max_size=40))
def test_the_newest_keys_are_remembered_over_restarts(moves: list[tuple[str, int, bool]]) -> None:
    memory, rows, used = Recent("r", INT), dict[bytes, bytes | None](), dict[str, int]()
    for key, value, restarts in moves:
        used.pop(key, None)
        used[key] = value
        oldest = list(used)[: max(0, len(used) - 3)]
        assert list(memory.put(key, value)) == oldest
        for old_key in oldest:
            del used[old_key]
        if restarts:
            memory = restore_recent(rows, memory)
        assert dict(memory) == used


def curriculum() -> Stepper:
    stepper = Stepper(CurriculumStage(RunConfig(curriculum=CurriculumConfig(mode="pools", groups_per_window=1))))
    stepper.tick()
    return stepper


def test_a_window_says_what_it_learnt_and_what_it_forgot() -> None:
    stepper, states = curriculum(), list[Any]()
    for name in ("x", "y", "x", "z", "w"):
        stepper.restore()
        states.append(stepper.feed(make_group(f"g{len(states)}", (0.5, 1.0), group_key=name))[0])
    assert [state.mode_state for state in states[2:]] == ['{"x":0.75}', '{"z":0.75}', '{"w":0.75,"y":null}']
    assert sorted(key for key in stepper.changelog if key.startswith(b"difficulty")) == [
        b"difficulty\x1fw",
        b"difficulty\x1fx",
        b"difficulty\x1fz",
    ]


def test_the_least_recently_used_example_is_expected_to_earn_its_tasks_mean() -> None:
    stepper = Stepper(GroupingStage(RunConfig(grouping=GroupingConfig(strategy="single"))), restoring=True)
    stepper.tick()
    for number, name in enumerate("aabbccdddd"):
        stepper.feed(make_score(f"t{number}", float(number % 2), example_id=name))
        stepper.tick(1)
    recent, forgotten = (stepper.feed(make_score(f"s{name}", 1.0, example_id=name))[0].members[0] for name in "da")
    assert (recent.expected_from, forgotten.expected_from) == ("example", "task")
