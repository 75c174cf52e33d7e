"""Whatever lags, dies, leaps or is changed on the way: an unchanged replay makes of the events what live made."""

import gc
import logging
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import decode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.topics import EPISODE_EVENTS, SCORES, TRAJECTORIES
from rollbus.streams.exactly_once import processing
from rollbus.streams.exactly_once.rounds import EarlyRecords
from rollbus.streams.replay.decide.live_inputs import Places, RecordedInputs
from rollbus.streams.state.watermarks import Hop, Watermarks
from tests.examples import count_examples
from tests.faults.seed import SEED
from tests.streams.replay.live_again import RowsByPlace, difference, entries_between, made_by_live, replay_of
from tests.streams.simulation.lagging import Lagging, lagging
from tests.streams.simulation.log import Broker
from tests.streams.simulation.naive import run_to_end

HISTORIES, SHARE = 10_000, 500
SHARES = [pytest.param(start, marks=pytest.mark.slow if start else ()) for start in range(0, HISTORIES, SHARE)]
SHARES.append(pytest.param(SEED * HISTORIES, marks=pytest.mark.faults, id="drawn"))
"""The first is part of the quick tests; `make test` has all 10,000, and `make faults` draws others."""
SEEDS_FOR_FAULTS = 600


@pytest.fixture(autouse=True)
def small_heap() -> Iterator[None]:
    """Spare the collector all that was there before, and the log the dead letters."""
    gc.freeze()
    logging.getLogger(processing.__name__).setLevel(logging.ERROR)
    yield
    logging.getLogger(processing.__name__).setLevel(logging.NOTSET)
    gc.unfreeze()


def first_difference(seeds: Iterable[int]) -> str | None:
    """The first history that is not replayed as it was, and how it differs."""
    for seed in seeds:
        past = lagging(seed)
        replay = run_to_end(replay_of(past.broker, past.assembly, past.scoring, [past.run]))
        if text := difference(made_by_live(past.broker), replay):
            return f"history {seed}: {text}; ROLLBUS_SEED={seed} repeats it alone"
    return None


@pytest.mark.parametrize("start", SHARES)
def test_a_replay_equals_live_whichever_partition_lags(start: int) -> None:
    alone = os.environ.get("ROLLBUS_SEED")
    text = first_difference([int(alone)] if alone else range(start, start + count_examples(SHARE)))
    assert text is None, text


def of_range(past: Lagging, **ticks: int) -> RowsByPlace:
    rows: RowsByPlace = run_to_end(replay_of(past.broker, past.assembly, past.scoring, [past.run], **ticks))
    return rows


def ticks_of(broker: Broker) -> list[int]:
    """The numbers of the ticks in the first partition of the events."""
    return [entry.record.number for entry in broker.entries_of(EPISODE_EVENTS, 0) if isinstance(entry.record, Tick)]


@pytest.mark.parametrize("seed", range(count_examples(20)))
def test_a_replay_up_to_a_tick_is_live_up_to_there(seed: int) -> None:
    past = lagging(seed)
    replay = of_range(past, last_tick=random.Random(seed).choice(ticks_of(past.broker)))
    live = made_by_live(past.broker)
    for place, rows in replay.items():
        if isinstance(rows, Counter):
            assert rows <= live.get(place, Counter()), place
        else:
            assert rows == live.get(place, [])[: len(rows)], place


@pytest.mark.parametrize("seed", range(count_examples(20)))
def test_a_replay_from_a_tick_on_assembles_and_scores_whole_episodes_as_live_did(seed: int) -> None:
    """Before the first configuration in the range the settings count: here, those that were in force."""
    past = lagging(seed)
    first_tick = random.Random(seed).choice(ticks_of(past.broker))
    cut_episodes = set()
    for number in range(past.broker.partitions):
        entries = past.broker.entries_of(EPISODE_EVENTS, number)
        left = entries_between(past.broker, EPISODE_EVENTS, number, first_tick)
        for entry in entries[: len(entries) - len(left)]:
            cut_episodes.add(getattr(entry.record, "episode_id", None))
            if isinstance(entry.record, ConfigApplied):
                past = replace(past, assembly=AssemblyConfig.model_validate_json(entry.record.content))
    replay, live = of_range(past, first_tick=first_tick), made_by_live(past.broker)
    for place in ((f"{topic.name} ", -1) for topic in (TRAJECTORIES, SCORES)):
        rows: Counter[bytes] = replay.get(place, Counter())
        live_rows: Counter[bytes] = live.get(place, Counter())
        different_rows = (rows - live_rows) + (live_rows - rows)
        assert {decode(row).episode_id for row in different_rows} <= cut_episodes


def tick_at_once(self: Watermarks, hop: Hop, newest: int) -> int:
    """A tick goes everywhere at once, past work that lags."""
    return newest


def take_early(self: EarlyRecords, raw: Any) -> None:
    """A record of a later round counts where it lies."""


def no_order(self: Places, topic: Any, record: Any) -> None:
    """Within a round records come in the order in which the replay makes them."""


def no_place(self: RecordedInputs) -> None:
    """A promoted configuration counts from the end of its round."""


FAULTS: list[tuple[Any, str, Any]] = [
    (Watermarks, "limit", tick_at_once),
    (EarlyRecords, "round_behind", take_early),
    (Places, "find", no_order),
    (RecordedInputs, "note_record", no_place),
]


@pytest.mark.parametrize(("owner", "name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_missing_part_is_detected(owner: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, fault)
    assert first_difference(range(SEEDS_FOR_FAULTS)) is not None


def test_histories_have_the_intended_kinds_of_records() -> None:
    """Among few there are lags that would have cut groups, changed settings, and every kind of feedback."""
    counted: Counter[str] = Counter()
    for seed in range(100):
        past = lagging(seed)
        for rows in past.broker.written().values():
            for _, record in rows:
                counted[type(record).__name__] += 1
                if reason := getattr(record, "reason", None):
                    counted[reason] += 1
                counted["retracted"] += getattr(record, "retracted", False)
                counted["superseding"] += getattr(record, "supersedes", None) is not None
                counted["rolled_back"] += getattr(record, "state", None) == "rolled_back"
    assert counted.keys() >= {
        *("Trajectory", "RewardRevised", "Score", "Group", "ClosedGroup", "TrainingBatch", "CurriculumState"),
        *("StepOutcome", "PolicyVersion", "RunCommand", "ConfigApplied", "Tick"),
        *("incomplete_group", "excluded", "missing_events", "late_event", "score_failed", "score_missing"),
    }
    assert min(counted[kind] for kind in ("retracted", "superseding", "rolled_back")) > 0
