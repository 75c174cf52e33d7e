"""Thousands of small histories of workers that crash, freeze, hand over and restore: each gives what one life gives.

The tests are coroutines since scoring wants a running loop, though it never waits. A failure names its seed;
`ROLLBUS_SEED=<seed> pytest tests/streams/simulation` lives through that history alone.
"""

import gc
import logging
import os
from collections.abc import Iterable, Iterator
from typing import get_args

import pytest

from tests.streams.simulation.checks import check
from tests.streams.simulation.history import live
from tests.streams.simulation.log import Cheat

HISTORIES, SHARE = 10_000, 1_000
CHEATS = [cheat for cheat in get_args(Cheat) if cheat]
SEEDS_FOR_CHEATS = 400


@pytest.fixture(autouse=True)
def small_heap() -> Iterator[None]:
    """Spare the collector all that was there before, and the log thousands of dead letters."""
    gc.freeze()
    logging.getLogger("rollbus.streams.processing").setLevel(logging.ERROR)
    yield
    logging.getLogger("rollbus.streams.processing").setLevel(logging.NOTSET)
    gc.unfreeze()


def first_failure(seeds: Iterable[int], cheat: Cheat = "") -> tuple[int, Exception] | None:
    """The first history that does not hold, and why."""
    for seed in seeds:
        try:
            check(live(seed, cheat))
        except Exception as error:
            return seed, error
    return None


def chosen(start: int) -> Iterable[int]:
    """The seeds of a share, or the one that is asked for."""
    asked = os.environ.get("ROLLBUS_SEED")
    return [int(asked)] if asked else range(start, start + SHARE)


@pytest.mark.parametrize("start", range(0, HISTORIES, SHARE))
async def test_nothing_is_lost_double_or_different_whatever_happens_to_the_workers(start: int) -> None:
    found = first_failure(chosen(start))
    if found is not None:
        seed, error = found
        raise AssertionError(f"history {seed}: {error}; ROLLBUS_SEED={seed} repeats it alone") from error


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_log_that_lacks_one_guarantee_is_found_out(cheat: Cheat) -> None:
    assert first_failure(range(SEEDS_FOR_CHEATS), cheat) is not None


async def test_a_seed_gives_the_same_history_again() -> None:
    first, second = live(7), live(7)
    assert first.broker.written() == second.broker.written()
    assert first.events == second.events


async def test_histories_hold_what_they_are_meant_to_hold() -> None:
    """Among few histories there are batches, both ends of steps, drops of several kinds and several runs."""
    kinds, reasons, runs = set(), set(), set()
    for seed in range(300):
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
