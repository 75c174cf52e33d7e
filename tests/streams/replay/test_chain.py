"""Simulated histories, replayed: each stage gives what live gave, however it is read, and so does a replay of it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.topics import CLOSED_GROUPS, DROPS, EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES, Topic
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.replay.decide.digest import without_location
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage, JudgedGroups
from tests.examples import count_examples
from tests.streams.replay.memory import Frames, ListSource, Raw, blank, replayed, sources_of
from tests.streams.simulation.history import ASSEMBLY, Past, live
from tests.streams.simulation.judging import REGISTRY

INPUTS = {
    "assembly": EPISODE_EVENTS,
    "scoring": TRAJECTORIES,
    "grouping": SCORES,
    "group-scoring": CLOSED_GROUPS,
    "curriculum": RUN_LOG,
}
SEEDS = st.integers(min_value=0, max_value=5_000)
few = settings(max_examples=count_examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def stages_of(past: Past, *kinds: str) -> list[AnyStage]:
    """Stages of these kinds, groups judged as live has judged them."""
    stages = namespace_stages(ASSEMBLY, ScoringConfig(), registry=REGISTRY)
    judged = JudgedGroups([run.run_id for run in past.runs])
    for topic in (RUN_LOG, DROPS):
        for judged_entry in past.broker.committed(topic):
            judged.take(judged_entry.record)

    async def find(group: Any, rewards: Any) -> Any:
        return judged.of(group)

    for kind in ("grouping", "group-scoring", "curriculum"):
        for run in past.runs:
            stages += [
                GroupScoringStage(run, registry=REGISTRY, find_judged=find)
                if isinstance(stage, GroupScoringStage)
                else stage
                for stage in run_stages(run, registry=REGISTRY)
                if stage.name.startswith(f"{kind}.")
            ]
    return [stage for stage in stages if stage.name.partition(".")[0] in kinds]


def list_sources(past: Past, topic: Topic, size: int = 50) -> list[ListSource]:
    """A topic of the live history as it can be read."""
    return [
        ListSource(
            number,
            [
                Raw(entry.offset, entry.key or None, entry.value, headers=entry.headers)
                for entry in past.broker.entries_of(topic, number)
            ],
            size,
        )
        for number in range(past.broker.partitions_of(topic))
    ]


def written_by(past: Past, kind: str) -> dict[Any, list[bytes]]:
    """What live's tasks of a stage wrote, by task and topic, locations blank."""
    rows_by_writer: dict[Any, list[bytes]] = defaultdict(list)
    for (writer, (topic, _)), rows in past.broker.written().items():
        stage, _, partition = writer.rpartition("-")
        if stage.partition(".")[0] == kind:
            rows_by_writer[stage, int(partition), topic] += [encode(without_location(record)) for _, record in rows]
    return rows_by_writer


async def alone(past: Past, kind: str, size: int) -> dict[Any, list[bytes]]:
    """What each stage of a kind makes of its recorded input, partition by partition."""
    rows_by_writer: dict[Any, list[bytes]] = {}
    for stage in stages_of(past, kind):
        for source in list_sources(past, INPUTS[kind], size):
            others = [ListSource(n, []) for n in range(past.broker.partitions) if n != source.partition]
            _, frames = await replayed([stage], [source, *others], partitions=past.broker.partitions)
            for (topic, _), rows in frames.items():
                rows_by_writer.setdefault((stage.name, source.partition, topic), []).extend(
                    data for _, data in blank(rows)
                )
    return rows_by_writer


@pytest.mark.parametrize("kind", list(INPUTS))
@few
@given(seed=SEEDS, size=st.integers(1, 40))
async def test_a_replay_of_one_stage_equals_live_byte_for_byte(kind: str, seed: int, size: int) -> None:
    past = live(seed)
    expected = {place: Counter(rows) for place, rows in written_by(past, kind).items() if rows}
    assert {place: Counter(rows) for place, rows in (await alone(past, kind, size)).items()} == expected


async def whole(past: Past, size: int, kinds: Sequence[str] = tuple(INPUTS)) -> tuple[Any, Frames]:
    return await replayed(stages_of(past, *kinds), list_sources(past, INPUTS[kinds[0]], size),
                          partitions=past.broker.partitions)  # fmt: skip


@few
@given(seed=SEEDS, sizes=st.tuples(st.integers(1, 7), st.integers(8, 60)))
async def test_two_replays_from_the_events_are_equal_for_any_read_size(seed: int, sizes: tuple[int, int]) -> None:
    past = live(seed)
    (first, first_frames), (second, second_frames) = [await whole(past, size) for size in sizes]
    assert first_frames == second_frames
    assert first.digests() == second.digests()
    trajectories = [row for (topic, _), rows in first_frames.items() for _, row in rows if topic == TRAJECTORIES.name]
    live_records = past.broker.committed(TRAJECTORIES)
    assert Counter(trajectories) == Counter(
        live_record.data for live_record in live_records if not isinstance(live_record.record, ConfigApplied)
    )


@few
@given(seed=SEEDS)
async def test_a_replay_of_a_replay_equals_it(seed: int) -> None:
    past = live(seed)
    _, frames = await whole(past, 20)
    for kind, topics in (("scoring", ["scores"]), ("grouping", ["run-log"]), ("curriculum", ["curriculum", "batches"])):
        for stage in stages_of(past, kind):
            again = await replayed(
                [stage], sources_of(frames, INPUTS[kind], past.broker.partitions), partitions=past.broker.partitions
            )
            for (topic, number), rows in again[1].items():
                if topic in topics:
                    names = {type_of(row) for row in rows}
                    before = [row for row in frames[topic, number] if type_of(row) in names and of_run(row, stage.name)]
                    assert blank(rows) == blank(before)


def type_of(row: tuple[bytes | None, bytes]) -> bytes:
    return row[1][:10]


def of_run(row: tuple[bytes | None, bytes], stage: str) -> bool:
    return "." not in stage or row[0] == stage.partition(".")[2].encode()


async def test_an_excluded_episode_is_replayed_as_one_drop() -> None:
    past = live(11)
    gone = past.events[0].episode_id
    _, frames = await replayed(stages_of(past, "assembly"), list_sources(past, EPISODE_EVENTS),
                               partitions=past.broker.partitions, excluded=frozenset({gone}))  # fmt: skip
    rows = [data for (topic, _), topic_rows in frames.items() for _, data in topic_rows if topic == TRAJECTORIES.name]
    assert not any(gone.encode() in data for data in rows)
    drops = [data for (topic, _), topic_rows in frames.items() for _, data in topic_rows if topic == DROPS.name]
    assert sum(b"on the list of exclusions" in data for data in drops) == 1
