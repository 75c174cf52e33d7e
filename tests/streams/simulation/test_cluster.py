"""Thousands of small histories of workers that crash, freeze, hand over and restore: each gives what one life gives.

The tests are coroutines since scoring wants a running loop, though it never waits. A failure names its seed;
`ROLLBUS_SEED=<seed> pytest tests/streams/simulation` lives through that history alone.
"""

import gc
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import pytest

from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams.exactly_once.processing import Processed, StagePartition
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage
from rollbus.streams.state.stage import Outgoing
from tests.examples import count_examples
from tests.faults.seed import SEED
from tests.streams.simulation import checks
from tests.streams.simulation.checks import check
from tests.streams.simulation.history import live
from tests.streams.simulation.log import Cheat

HISTORIES, SHARE = 10_000, 500
SHARES = [pytest.param(start, marks=pytest.mark.faults if start else ()) for start in range(0, HISTORIES, SHARE)]
"""The first is always the same, and belongs to the fast tests; `make faults` draws the others."""
CHEATS = [cheat for cheat in get_args(Cheat) if cheat]
SEEDS_FOR_CHEATS = 1_000


@pytest.fixture(autouse=True)
def small_heap() -> Iterator[None]:
    """Spare the collector all that was there before, and the log thousands of dead letters."""
    gc.freeze()
    logging.getLogger("rollbus.streams.exactly_once.processing").setLevel(logging.ERROR)
    yield
    logging.getLogger("rollbus.streams.exactly_once.processing").setLevel(logging.NOTSET)
    gc.unfreeze()


def first_failure(seeds: Iterable[int], cheat: Cheat = "") -> tuple[int, Exception] | None:
    """The first history that does not hold, and why."""
    for seed in seeds:
        try:
            check(live(seed, cheat))
        except Exception as error:
            return seed, error
    return None


def chosen_seeds(start: int) -> Iterable[int]:
    """The seeds of a share, or the one that is asked for."""
    seed_text = os.environ.get("ROLLBUS_SEED")
    first = SEED * HISTORIES + start if start else 0
    return [int(seed_text)] if seed_text else range(first, first + count_examples(SHARE))


@pytest.mark.parametrize("start", SHARES)
async def test_no_record_is_lost_or_doubled_whatever_ends_the_workers(start: int) -> None:
    failure = first_failure(chosen_seeds(start))
    if failure is not None:
        seed, error = failure
        raise AssertionError(f"history {seed}: {error}; ROLLBUS_SEED={seed} repeats it alone") from error


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_log_that_lacks_one_guarantee_is_detected(cheat: Cheat) -> None:
    assert first_failure(range(SEEDS_FOR_CHEATS), cheat) is not None


def without_dead_letters(work: StagePartition, processed: Processed) -> None:
    processed.outputs = [output for output in processed.outputs if output.topic != DEAD_LETTERS.name]


def without_the_last_output(work: StagePartition, processed: Processed) -> None:
    del processed.outputs[1:]


def by_key(work: StagePartition, processed: Processed) -> None:
    processed.outputs.sort(key=lambda output: output.key or b"", reverse=True)


def without_the_clock(work: StagePartition, processed: Processed) -> None:
    processed.changelog = [row for row in processed.changelog if not row[0].startswith(b"clock")]


def without_rows_held_back(work: StagePartition, processed: Processed) -> None:
    if processed.quiet:
        work.state.forget_touched()


BUGS = [without_dead_letters, without_the_last_output, by_key, without_the_clock, without_rows_held_back]


@pytest.mark.parametrize("bug", BUGS)
async def test_a_bug_shared_with_live_is_detected(
    bug: Callable[[StagePartition, Processed], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = StagePartition.process

    async def with_bug(self: StagePartition, records: Any, **options: Any) -> Processed:
        processed = await process(self, records, **options)
        bug(self, processed)
        return processed

    monkeypatch.setattr(StagePartition, "process", with_bug)
    assert first_failure(range(SEEDS_FOR_CHEATS)) is not None


SILENT: list[tuple[type, str, str]] = [
    (AliasStage, "event", "reward by alias"),
    (AssemblyStage, "event", "is lost"),
    (AssemblyStage, "episode", "(no|without a) fate"),
    (GroupingStage, "trajectory", "run (main|other): trajectory"),
    (GroupingStage, "group", "run (main|other): trajectory"),
    (GroupScoringStage, "group", "run (main|other): trajectory"),
    (CurriculumStage, "group", "run (main|other): trajectory"),
]
"""A stage, the unit that it drops without a word, and (a pattern) the account that then does not balance."""


@pytest.mark.parametrize(("stage", "unit", "account"), SILENT, ids=lambda value: getattr(value, "__name__", str(value)))
async def test_a_stage_that_drops_silently_is_found_by_the_accounts(
    stage: Any, unit: str, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every worker would do the same, undisturbed too: nothing but the accounts can tell."""
    step = stage.step

    def silent(self: Any, *arguments: Any) -> list[Outgoing]:
        outputs = list(step(self, *arguments))
        return [out for out in outputs if not (isinstance(out.record, Drop) and out.record.unit == unit)]

    monkeypatch.setattr(stage, "step", silent)
    monkeypatch.setattr(checks, "_as_worked_out_at_once", lambda past: None)
    failure = first_failure(range(SEEDS_FOR_CHEATS))
    assert failure is not None
    assert re.search(account, str(failure[1]))


async def test_a_batch_that_is_cut_again_is_found_by_the_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    step = CurriculumStage.step

    def doubling(self: Any, state: Any, incoming: Any) -> Iterator[Outgoing]:
        for out in step(self, state, incoming):
            yield out
            if isinstance(out.record, TrainingBatch):
                yield out

    monkeypatch.setattr(CurriculumStage, "step", doubling)
    failure = first_failure(range(SEEDS_FOR_CHEATS))
    assert failure is not None


async def test_a_seed_gives_the_same_history_again() -> None:
    first, second = live(7), live(7)
    assert first.broker.written() == second.broker.written()
    assert first.events == second.events


async def test_histories_have_the_intended_kinds_of_records() -> None:
    """Among few histories there are batches, both ends of steps, drops of several kinds and several runs."""
    kinds, reasons, runs = set(), set(), set()
    for seed in range(200):
        for rows in live(seed).broker.written().values():
            for _, record in rows:
                kinds.add(type(record).__name__)
                reasons.add(getattr(record, "reason", None))
                runs.add(getattr(record, "run_id", None))
    assert kinds >= {"Trajectory", "RewardRevised", "Score", "Group", "TrainingBatch", "CurriculumState"}
    assert kinds >= {"ClosedGroup", "DeadLetter"}
    assert kinds >= {"StepCompleted", "StepSkipped", "StepOutcome", "PolicyVersion", "Drop", "RunCommand"}
    assert reasons >= {"missing_events", "score_missing", "incomplete_group", "late_event", "excluded", "run_stopped"}
    assert reasons >= {"score_failed", "unresolved_alias"}
    assert runs >= {"main", "other"}
