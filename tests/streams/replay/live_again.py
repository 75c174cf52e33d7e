"""A simulated history, replayed from its events with what live wrote down: the two are compared byte for byte."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import CurriculumState, Group, TrainingBatch
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.schemas.topics import (
    BATCHES,
    CLOSED_GROUPS,
    CURRICULUM,
    DROPS,
    EPISODE_EVENTS,
    RUN_LOG,
    SCORES,
    TRAJECTORIES,
    Topic,
)
from rollbus.streams.pipeline import AnyStage, run_stages
from rollbus.streams.replay.decide.chain import Chain
from rollbus.streams.replay.decide.digest import without_location
from rollbus.streams.replay.decide.live_inputs import LiveInputs, Outcomes, RecordedInputs
from rollbus.streams.replay.decide.rounds import Round, merge_sources
from rollbus.streams.replay.decide.scores import RecordedScoring
from rollbus.streams.replay.kafka.live_topics import LiveReader, RecordedScores
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage, JudgedGroups
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import PureAsEffects
from tests.streams.replay.memory import ListSource, MemoryOutput, Raw
from tests.streams.simulation.judging import REGISTRY
from tests.streams.simulation.log import Broker, Entry

KINDS_OF_TOPIC: Mapping[Topic, tuple[type, ...]] = {
    TRAJECTORIES: (Trajectory, RewardRevised),
    SCORES: (Score,),
    RUN_LOG: (Group,),
    CURRICULUM: (CurriculumState,),
    BATCHES: (TrainingBatch,),
    DROPS: (Drop,),
}
"""What is compared of each topic."""
IN_ANY_ORDER = (TRAJECTORIES, SCORES, DROPS)
"""Written by many partitions at once, or in front of the ticks of their rounds; of the others the order counts too."""
RowsByPlace = dict[tuple[str, int], Any]


async def replay_of(
    broker: Broker,
    assembly: AssemblyConfig,
    scoring: ScoringConfig,
    runs: Sequence[RunConfig],
    *,
    first_tick: int = 0,
    last_tick: int | None = None,
) -> RowsByPlace:
    """Return what an unchanged replay makes, of everything or of a range of ticks."""
    live_inputs = LiveInputs()
    topics = (TRAJECTORIES, SCORES, CLOSED_GROUPS, RUN_LOG)
    readers = [_reader(broker, topic, live_inputs, first_tick) for topic in topics]
    outcomes = Outcomes(first_tick)
    for entry in broker.entries_of(RUN_LOG, 0):
        outcomes.take(entry.record, entry.offset)
    outcomes.end()
    live_inputs.outcomes.update(outcomes.by_batch)

    async def read_on(tick: int) -> None:
        for reader in readers:
            await reader.until(tick)

    output = MemoryOutput()
    chain = Chain(
        _stages(broker, assembly, scoring, runs, first_tick), partitions=broker.partitions, output=output,
        partition_of=partition_of, source_namespace="", namespace="replay.", live_inputs=live_inputs,
        before_tick=read_on,
    )  # fmt: skip
    await read_on(first_tick)
    await chain.open()
    async for piece in merge_sources(_sources(broker, EPISODE_EVENTS, first_tick, last_tick)):
        if isinstance(piece, Round):
            await chain.round(piece)
        else:
            await chain.piece(piece.partition, piece.records)
    await chain.end()
    frames = ((topic, number, [data for _, data in output.frames.get((topic.name, number), ())])
              for topic in KINDS_OF_TOPIC for number in range(broker.partitions_of(topic)))  # fmt: skip
    return _rows_by_place(frames)


def made_by_live(broker: Broker) -> RowsByPlace:
    """Return what live made of the same."""
    frames = ((topic, number, [entry.value or b"" for entry in broker.entries_of(topic, number)])
              for topic in KINDS_OF_TOPIC for number in range(broker.partitions_of(topic)))  # fmt: skip
    return _rows_by_place(frames)


def _rows_by_place(frames: Any) -> RowsByPlace:
    rows_by_place: RowsByPlace = defaultdict(list)
    for topic, number, rows in frames:
        records = [record for row in rows if isinstance(record := decode(row), KINDS_OF_TOPIC[topic])]
        records = [record for record in records if getattr(record, "stage", "") not in ("trainer", "alias")]
        for record in records:  # runs share topics, and have no order between them
            run = "" if topic in IN_ANY_ORDER else getattr(record, "run_id", None) or ""
            place = (f"{topic.name} {run}", -1 if topic in IN_ANY_ORDER else number)
            rows_by_place[place].append(encode(without_location(record)))
    return {place: Counter(rows) if place[1] < 0 else rows for place, rows in rows_by_place.items()}


def _reader(broker: Broker, topic: Topic, live_inputs: LiveInputs, first_tick: int) -> LiveReader:
    sources = _sources(broker, topic)[:1]
    if topic is SCORES:
        sources += _sources(broker, topic, first_tick - 1)[1:]
    partitions = [source.partition if topic is SCORES else None for source in sources]
    collectors = [
        RecordedInputs(
            topic, first_tick=first_tick, change=lambda record: record, live_inputs=live_inputs, partition=partition
        )
        for partition in partitions
    ]
    return LiveReader(topic, sources, collectors, live_inputs.places, first_tick=first_tick)


def _sources(broker: Broker, topic: Topic, first_tick: int = 0, last_tick: int | None = None) -> list[ListSource]:
    return [
        ListSource(number, [Raw(entry.offset, entry.key or None, entry.value, headers=entry.headers)
                            for entry in entries_between(broker, topic, number, first_tick, last_tick)])
        for number in range(broker.partitions_of(topic))
    ]  # fmt: skip


def entries_between(
    broker: Broker, topic: Topic, partition: int, first_tick: int, last_tick: int | None = None
) -> Sequence[Entry]:
    """Return a partition from one tick to another, both included; from 0 on it is from its first record."""
    entries = broker.entries_of(topic, partition)
    ticks = [(at, entry.record.number) for at, entry in enumerate(entries) if isinstance(entry.record, Tick)]
    begin = next((at for at, number in ticks if number >= first_tick), len(entries)) if first_tick > 0 else 0
    end = len(entries)
    if last_tick is not None:
        end = max((at + 1 for at, number in ticks if number <= last_tick), default=0)
    return entries[begin:end]


def _stages(
    broker: Broker, assembly: AssemblyConfig, scoring: ScoringConfig, runs: Sequence[RunConfig], first_tick: int
) -> list[AnyStage]:
    scores = RecordedScores(_sources(broker, SCORES, first_tick - 1))
    configs = {scoring.config_hash(): scoring}
    for record in broker.records(TRAJECTORIES):
        if isinstance(record, ConfigApplied) and record.stage == "scoring":
            configs[record.config_hash] = ScoringConfig.model_validate_json(record.content)
    judged = JudgedGroups([run.run_id for run in runs])
    for topic in (RUN_LOG, DROPS):
        for record in broker.records(topic):
            judged.take(record)

    async def find(group: Any, rewards: Any) -> Any:
        return judged.of(group)

    stage = ScoringStage(scoring, keep_ms=assembly.late_horizon_ms, registry=REGISTRY)
    of_runs = [stage for run in runs for stage in run_stages(run, registry=REGISTRY)]
    stages = [GroupScoringStage(run_of(stage, runs), registry=REGISTRY, find_judged=find)
              if isinstance(stage, GroupScoringStage) else stage for stage in of_runs]  # fmt: skip
    order = {"grouping": 0, "group-scoring": 1, "curriculum": 2}
    stages.sort(key=lambda stage: order[stage.name.partition(".")[0]])
    return [PureAsEffects(AssemblyStage(assembly)), RecordedScoring(stage, scores.find, configs), *stages]


def run_of(stage: AnyStage, runs: Sequence[RunConfig]) -> RunConfig:
    """Return the run of a stage."""
    return next(run for run in runs if stage.name.endswith(f".{run.run_id}"))


def difference(live: RowsByPlace, replay: RowsByPlace) -> str | None:
    """Say what differs, in short; None if nothing does."""
    for place in sorted(live.keys() | replay.keys()):
        ours, theirs = live.get(place, []), replay.get(place, [])
        if ours == theirs:
            continue
        if place[1] < 0:
            ours, theirs = Counter(ours), Counter(theirs)
            only_live, only_replay = _describe_rows(ours - theirs), _describe_rows(theirs - ours)
            return f"{place[0]}: only live {only_live}, only the replay {only_replay}"
        at = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
        at = min(len(ours), len(theirs)) if at < 0 else at
        here, there = _describe_rows(ours[at : at + 1]), _describe_rows(theirs[at : at + 1])
        return f"{place} record {at} of {len(ours)} is {here}, in the replay {there}"
    return None


def _describe_rows(rows: Any) -> str:
    return "; ".join(repr(decode(row))[:600] for row in list(rows)[:2])
