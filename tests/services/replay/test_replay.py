"""Replays through the command line on a real broker: killed and given again, missing ranges, bounds, deletion."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.records.config import RewardConfig, ScoringConfig
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import CurriculumState, StepOutcome, TrainingBatch
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.schemas.topics import (
    BATCHES,
    CURRICULUM,
    DROPS,
    EPISODE_EVENTS,
    RUN_LOG,
    SCORES,
    TRAJECTORIES,
    Topic,
)
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import partitions_on_broker
from rollbus.streams.replay.compare.live import LIVE, compare_replays, read_side
from rollbus.streams.replay.compare.side import CommonTime
from rollbus.streams.replay.kafka.manifest import delete_replay, find_manifest, read_manifests
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.kafka.source import open_ranges, read_whole
from rollbus.streams.replay.kafka.writer import KafkaOutput
from rollbus.streams.replay.plan.range import Bound, parse_bound, parse_end
from rollbus.streams.replay.plan.range_on_broker import resolve, starts_of
from rollbus.streams.rewards.contract import RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.builders import make_config, make_episode, make_outcome, make_score, make_tick, make_trajectory
from tests.console import ROLLBUS
from tests.services.commands import say
from tests.services.replay.live import frames, records, write_settings
from tests.services.replay.log import ROUNDS, name_of, replay_of, send_everywhere
from tests.services.streams.fixtures import delete_before, send, send_to_all
from tests.streams.replay.memory import ENVIRONMENTS, environment

pytestmark = pytest.mark.services


class DyingOutput(KafkaOutput):
    """Ends the replay, with half of it written."""

    async def settle(self) -> None:
        await self._send()
        await self._send()
        if self.counts.total() > 150:
            raise KeyboardInterrupt


async def kill_replay(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rollbus.streams.replay.kafka.run.KafkaOutput", DyingOutput)
        with pytest.raises(KeyboardInterrupt):
            await replay.run()


async def test_a_killed_replay_does_not_count_until_it_is_completed(
    shared_log: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, name = shared_log.stream_settings(), name_of(shared_log, "killed")
    await kill_replay(replay_of(shared_log, name), monkeypatch)
    with pytest.raises(ConfigurationError, match="is not whole"):
        await find_manifest(stream, name)
    half = len(await records(replay_of(shared_log, name).replay_settings, TRAJECTORIES.name))
    manifest = await replay_of(shared_log, name).run()
    undisturbed = await replay_of(shared_log, name_of(shared_log, "whole")).run()
    assert manifest.digests == undisturbed.digests
    assert 0 < half < len(await records(replay_of(shared_log, name).replay_settings, TRAJECTORIES.name))
    for topic in ("trajectories", "drops", "batches"):
        killed_frames, undisturbed_frames = [
            await frames(replay_of(shared_log, replay_manifest.name).replay_settings, topic)
            for replay_manifest in (manifest, undisturbed)
        ]
        if topic == "batches":  # they name locations
            assert {n: len(rows) for n, rows in killed_frames.items()} == {
                n: len(rows) for n, rows in undisturbed_frames.items()
            }
        else:
            assert killed_frames == undisturbed_frames


async def test_the_beginning_of_a_replay_with_other_settings_is_discarded(
    shared_log: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(shared_log, "resettled")
    await kill_replay(replay_of(shared_log, name), monkeypatch)
    other = shared_log.assembly.model_copy(update={"min_episode_length": 2})
    again = await replay_of(shared_log, name, assembly=other).run()
    undisturbed = await replay_of(shared_log, name_of(shared_log, "fresh"), assembly=other).run()
    assert (again.digests, again.configs["assembly"]) == (undisturbed.digests, other.config_hash())
    replayed_records = await records(replay_of(shared_log, name).replay_settings, TRAJECTORIES.name)
    assert {record.config_hash for record in replayed_records if isinstance(record, Trajectory)} == {
        other.config_hash()
    }


async def test_scores_of_an_earlier_answer_are_discarded(shared_log: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a function that reads a file: nothing but what it wrote tells that it is another."""
    name, moody_scoring = (
        name_of(shared_log, "moody"),
        ScoringConfig(rewards=(RewardConfig(type="moody", name="moody"),)),
    )
    for value in (1.0, 2.0):
        registry = {**BUILT_IN, "moody": RewardFunction(lambda trajectory, context, value=value: value, version="1")}
        replay = replace(replay_of(shared_log, name, new_scoring=moody_scoring), registry=registry)
        if value == 1.0:
            await kill_replay(replay, monkeypatch)
            assert await records(replay.replay_settings, SCORES.name)
        else:
            await replay.run()
    assert {score.value for score in await records(replay.replay_settings, SCORES.name)} == {2.0}


class HeldOutput(KafkaOutput):
    """Waits in the middle of the replay."""

    reached: ClassVar[asyncio.Event]
    go_on: ClassVar[asyncio.Event]

    async def settle(self) -> None:
        HeldOutput.reached.set()
        await HeldOutput.go_on.wait()
        await super().settle()


async def test_a_replay_being_written_is_not_begun_again_or_deleted(
    shared_log: Settings, monkeypatch: pytest.MonkeyPatch, kafka: str, tmp_path: Path
) -> None:
    stream, name = shared_log.stream_settings(), name_of(shared_log, "twice")
    HeldOutput.reached, HeldOutput.go_on = asyncio.Event(), asyncio.Event()
    with monkeypatch.context() as patched:
        patched.setattr("rollbus.streams.replay.kafka.run.KafkaOutput", HeldOutput)
        first = asyncio.create_task(replay_of(shared_log, name).run())
        reached = asyncio.create_task(HeldOutput.reached.wait())
        await asyncio.wait((first, reached), return_when=asyncio.FIRST_COMPLETED)
        assert reached.done(), first
    with pytest.raises(ConfigurationError, match=f"replay '{name}' is being written by"):
        await replay_of(shared_log, name).run()
    delete = partial(say, write_settings(tmp_path, kafka, shared_log.namespace), "replay", "delete", name)
    assert "is being written by" in await asyncio.to_thread(delete, expect=1)
    HeldOutput.go_on.set()
    manifest = await first
    assert manifest == await find_manifest(stream, name)
    assert manifest.digests == (await replay_of(shared_log, name_of(shared_log, "alone")).run()).digests
    assert "deleted replay" in await asyncio.to_thread(delete)


async def delete_first(stream: StreamSettings, offset: int, topic: Topic = EPISODE_EVENTS) -> None:
    """Delete the first records of partition 0."""
    await delete_before(stream.kafka, {TopicPartition(topic.full_name(stream.namespace), 0): offset})


async def test_missing_records_stop_a_replay_unless_they_are_accepted(settings: Settings) -> None:
    stream, name = settings.stream_settings(), name_of(settings, "gone")
    await delete_first(stream, 40)
    with pytest.raises(DataLossError, match=r"events\[0\] 0 … 39; every partition is whole from tick:\d+ on.*archive"):
        await replay_of(settings, name, start=Bound()).run()
    for start in (Bound(offset=2), Bound(tick=0)):
        with pytest.raises(DataLossError, match=r"episode-events\[0\] \d … 39"):
            await replay_of(settings, name, start=start).run()
    manifest = await replay_of(settings, name, start=Bound(offset=2), allow_missing=True).run()
    assert [(gap.partition, gap.from_offset, gap.to_offset) for gap in manifest.missing] == [(0, 2, 40)]


@pytest.mark.parametrize("first_tick", [None, 3])
async def test_missing_scores_of_live_stop_a_replay_that_reads_them(settings: Settings, first_tick: int | None) -> None:
    stream, name = settings.stream_settings(), name_of(settings, "unscored")
    await delete_first(stream, 5, SCORES)
    start = Bound(tick=first_tick)
    with pytest.raises(DataLossError, match=r"scores\[0\] 0 … 4; score again with --rescore"):
        await replay_of(settings, name, start=start).run()
    assert (await replay_of(settings, name, start=start, allow_missing=True).run()).state == "complete"


async def test_a_shadow_whose_beginning_is_gone_says_how_to_begin_again(settings: Settings) -> None:
    name, ended = name_of(settings, "old"), asyncio.Event()
    ended.set()
    shadow = replace(replay_of(settings, name), follow=ended)
    assert (await shadow.run()).state == "following"
    await delete_first(settings.stream_settings(), 40)
    with pytest.raises(DataLossError, match=rf"episode-events\[0\] 0 … 39; `rollbus replay delete {name}` lets"):
        await shadow.run()


async def test_records_deleted_while_they_are_read_are_named(settings: Settings) -> None:
    stream = settings.stream_settings()
    resolved = await resolve(stream, EPISODE_EVENTS, Bound(), Bound())
    await delete_first(stream, 40)

    async def read() -> None:
        async with open_ranges(stream, resolved.ranges) as sources:
            for source in sources:
                await source.read()

    with pytest.raises(DataLossError, match=r"deleted records before they were read: \S*episode-events\[0\] from 0;"):
        await read()


async def test_ticks_and_times_bound_a_range_alike(shared_log: Settings) -> None:
    name, start_ms = name_of(shared_log, "bound"), make_tick(0).stream_time_ms
    by_tick = await replay_of(shared_log, name, start=Bound(tick=3), end=Bound(tick=6)).run(dry_run=True)
    times = (Bound(time_ms=start_ms + 2_500), Bound(time_ms=start_ms + 6_999))
    by_time = await replay_of(shared_log, name, start=times[0], end=times[1]).run(dry_run=True)
    assert by_tick.ranges == by_time.ranges
    assert by_tick.digests == by_time.digests
    assert (by_tick.from_ms, by_tick.to_ms) == (start_ms + 3_000, start_ms + 6_000)
    assert name not in await read_manifests(shared_log.stream_settings())


async def test_a_range_of_offsets_is_compared_where_all_partitions_have_records(
    shared_log: Settings,
) -> None:
    ticks = await resolve(shared_log.stream_settings(), EPISODE_EVENTS, Bound(tick=3), Bound(tick=6))
    begin, end = (
        Bound(offsets=((0, offset + 1),)) for offset in (ticks.ranges[0].from_offset, ticks.ranges[0].to_offset)
    )
    for processes in (1, 2):
        replay = replace(replay_of(shared_log, name_of(shared_log, "cut"), start=begin, end=end), processes=processes)
        manifest = await replay.run(dry_run=True)
        assert (manifest.from_ms, manifest.to_ms) == tuple(make_tick(number).stream_time_ms for number in (4, 6))


async def test_a_range_without_records_is_refused(shared_log: Settings) -> None:
    before = await read_manifests(shared_log.stream_settings())
    beyond = (Bound(at_end=True), Bound(offset=99_999), Bound(tick=ROUNDS + 50), Bound(time_ms=2**43))
    reversed_bounds = ((Bound(tick=6), Bound(tick=3)), (Bound(), parse_end("earliest", now_ms=0)))
    for start, end in (*((start, Bound()) for start in beyond), *reversed_bounds):
        with pytest.raises(ConfigurationError, match=rf"no record of episode-events in that .* is tick:{ROUNDS - 1}"):
            await replay_of(shared_log, name_of(shared_log, "empty"), start=start, end=end).run()
    with pytest.raises(ConfigurationError, match=r"no partition 12: .* times with their day"):
        await replay_of(shared_log, name_of(shared_log, "noon"), start=parse_bound("12:00", now_ms=0)).run()
    assert await read_manifests(shared_log.stream_settings()) == before


async def test_a_replay_with_feedback_end_has_late_feedback_from_the_start(
    shared_log: Settings,
) -> None:
    names = [name_of(shared_log, feedback) for feedback in ("recorded", "end")]
    for name, feedback in zip(names, ("recorded", "end"), strict=True):
        await replay_of(shared_log, name, feedback=feedback, stages=("assembly",)).run()
    records_by_replay = [await records(replay_of(shared_log, name).replay_settings, "trajectories") for name in names]
    revised, whole = (
        sum(isinstance(record, RewardRevised) and not record.excluded for record in side) for side in records_by_replay
    )
    assert revised > 0 == whole
    assert any(
        reward.source == "agent" and len(record.rewards) > 1
        for record in records_by_replay[1]
        if isinstance(record, Trajectory)
        for reward in record.rewards
    )


async def test_recorded_scores_include_late_feedback_with_feedback_end(settings: Settings) -> None:
    """Live's first score of an episode, which is all that such a replay has of live, is older than that feedback."""
    stream, name = settings.stream_settings(), name_of(settings, "known")
    await replay_of(settings, name, stages=("assembly",)).run()
    trajectories = [record for record in await records(replay_of(settings, name).replay_settings, "trajectories")
            if isinstance(record, Trajectory)]  # fmt: skip
    version = settings.scoring.config_hash()
    given = [
        (trajectory, make_score(trajectory.trajectory_id, None, episode_id=trajectory.episode_id, config_hash=version))
        for trajectory in trajectories
    ]
    await send(stream, SCORES.name, [(trajectory.group_hint.encode(), encode(score)) for trajectory, score in given])
    options: dict[str, Any] = {"feedback": "end", "scores": "recorded", "new_scoring": None}
    options["stages"] = ("assembly", "scoring")
    scored = replay_of(settings, name_of(settings, "scored"), **options)
    manifest = await scored.run()
    whole = {record.trajectory_id: record for record in await records(scored.replay_settings, "trajectories")}
    replayed_scores = await records(scored.replay_settings, "scores")
    assert len(replayed_scores) > 40 < sum(score.value is not None for score in replayed_scores)
    for score in replayed_scores:
        rewards = whole[score.trajectory_id].rewards
        assert score.value == (rewards[-1].value if rewards else None)
    in_two = replace(replay_of(settings, name_of(settings, "two"), **options), processes=2)
    assert (await in_two.run(dry_run=True)).digests == manifest.digests


async def test_a_score_before_the_first_tick_is_found(new_log: Settings) -> None:
    """A worker reads what stood in the log before the first tick was written, and may score it before that tick."""
    stream = new_log.stream_settings()
    trajectory = make_trajectory("e1")
    key = trajectory.group_hint.encode()
    score = make_score(
        trajectory.trajectory_id,
        0.75,
        episode_id="e1",
        config_hash=ScoringStage(new_log.scoring, keep_ms=0).new_state().config.hash,
    )
    for number in (0, 1):
        if number == 0:
            await send(stream, TRAJECTORIES.name, [(b"e1", encode(trajectory))])
            await send(stream, SCORES.name, [(key, encode(score))])
        await send_everywhere(stream, encode(make_tick(number)))
    for start in (Bound(), Bound(offset=0)):
        name = name_of(new_log, "early", str(start.offset))
        replay = replay_of(new_log, name, start=start, stages=("scoring",), scores="recorded", new_scoring=None)
        await replay.run()
        (replayed_score,) = await records(replay.replay_settings, SCORES.name)
        assert (replayed_score.outcome, replayed_score.value) == ("scored", 0.75)


@pytest.mark.parametrize("bound", [Bound(time_ms=1), Bound(tick=0)])
async def test_a_bound_before_the_first_tick_begins_with_the_first_record(new_log: Settings, bound: Bound) -> None:
    stream = new_log.stream_settings()
    events = [(event.root_episode_id.encode(), encode(event)) for event in make_episode("e1")]
    await send(stream, EPISODE_EVENTS.name, events)
    for number in (1, 2):
        await send_everywhere(stream, encode(make_tick(number)))
    spans = (await resolve(stream, EPISODE_EVENTS, bound, Bound())).ranges
    assert sum(span.to_offset - span.from_offset for span in spans) == len(events) + 2 * len(spans)


async def test_a_comparison_reads_live_from_where_its_range_begins(new_log: Settings) -> None:
    stream = new_log.stream_settings()
    ticks = [make_tick(number) for number in range(3)]
    for number, tick in enumerate(ticks):
        await send_everywhere(stream, encode(tick))
        new_trajectory = make_trajectory(f"e{number}", assembled_at_ms=tick.stream_time_ms)
        key, score = (
            new_trajectory.group_hint.encode(),
            make_score(new_trajectory.trajectory_id, 1.0, episode_id=new_trajectory.episode_id),
        )
        await send(stream, TRAJECTORIES.name, [(key, encode(new_trajectory))])
        await send(stream, SCORES.name, [(key, encode(score))])
    span = CommonTime(ticks[1].stream_time_ms, ticks[2].stream_time_ms)
    starts = await starts_of(stream, TRAJECTORIES, span.from_ms)
    left = [decode(raw.value) async for raw in read_whole(stream, TRAJECTORIES, starts=starts)]
    assert [record.episode_id for record in left if isinstance(record, Trajectory)] == ["e1", "e2"]
    side = await read_side(stream, "live", span, [])
    assert sorted(trajectory.episode_id for trajectory in side.trajectories.values()) == ["e1", "e2"]
    assert sorted(score.episode_id for score in side.scores.values()) == ["e1", "e2"]
    assert await starts_of(stream, TRAJECTORIES, ticks[2].stream_time_ms + 1) == {}  # no tick tells where it begins
    assert await starts_of(stream, TRAJECTORIES, None) == {}


def without_ticks(at_ms: int) -> dict[Topic, Any]:
    """A record made at that time for each compared topic that ticks do not stand in."""
    window = CurriculumState(run_id="main", window=0, mode="off", percentile=1.0, last_expansion_window=-1,
                             closed_at_ms=at_ms)  # fmt: skip
    batch = TrainingBatch(batch_hash=f"b{at_ms}", run_id="main", model="agent", number=0, window=0, groups=(),
                          newest_policy_version=0, cut_at_ms=at_ms)  # fmt: skip
    drop = Drop(unit="episode", unit_id="e", reason="missing_events", stage="assembly", dropped_at_ms=at_ms)
    return {CURRICULUM: window, BATCHES: batch, DROPS: drop}


async def test_deleted_records_of_live_are_not_compared(settings: Settings) -> None:
    """The first remaining record shows it for windows, batches and drops, whose topics have no ticks."""
    stream, (whole, late) = settings.stream_settings(), (name_of(settings, name) for name in ("whole", "late"))
    for name, start in ((whole, 0), (late, 6)):
        await replay_of(settings, name, start=Bound(tick=start)).run()
    for number in (1, 5):
        for topic, record in without_ticks(make_tick(number).stream_time_ms).items():
            await send_to_all(stream, topic, data=encode(record))
    await compare_replays(stream, LIVE, whole)
    for topic, end in (*((topic, 1) for topic in without_ticks(0)), (TRAJECTORIES, 4)):
        await delete_first(stream, end, topic)
        missing = rf"{topic.name}\[0\] 0 … {end - 1}[^;]*; replay a range that begins later"
        for left_name, right_name in ((LIVE, whole), (whole, LIVE)):
            with pytest.raises(DataLossError, match=missing):
                await compare_replays(stream, left_name, right_name)
    await compare_replays(stream, LIVE, late)
    await compare_replays(stream, late, whole)


async def test_deleted_records_of_a_replay_are_not_compared(shared_log: Settings) -> None:
    stream, (whole_name, torn_name) = (
        shared_log.stream_settings(),
        (name_of(shared_log, name) for name in ("whole-one", "torn")),
    )
    for name in (whole_name, torn_name):
        await replay_of(shared_log, name).run()
    for topic in (TRAJECTORIES, BATCHES):
        await delete_first(replay_of(shared_log, torn_name).replay_settings, 1, topic)
        for against in (LIVE, whole_name):
            with pytest.raises(
                DataLossError,
                match=rf"replay-{torn_name}\.{stream.namespace}{topic.name}\[0\] 0 … 0.*; give the replay again",
            ):
                await compare_replays(stream, against, torn_name)
    await compare_replays(stream, LIVE, whole_name)


async def test_the_answer_of_the_live_trainer_is_replayed_at_its_time(settings: Settings) -> None:
    stream = settings.stream_settings()
    before = replay_of(settings, name_of(settings, "before"))
    await before.run()
    (first, *_) = await records(before.replay_settings, "batches")
    outcome = make_outcome(first)
    await send(stream, RUN_LOG.name, [(first.run_id.encode(), encode(outcome))])
    await send_everywhere(stream, encode(make_tick(ROUNDS)))
    after = replay_of(settings, name_of(settings, "after"))
    await after.run()
    (log,) = (await frames(after.replay_settings, "run-log")).values()
    log_records = [decode(value) for _, value in log]
    answers = [
        record for record in log_records if isinstance(record, StepOutcome) and record.batch_hash == first.batch_hash
    ]
    assert answers == [outcome]
    assert [record.number for record in log_records[: log_records.index(outcome)] if isinstance(record, Tick)] == list(
        range(ROUNDS)
    )


async def test_a_configuration_from_before_the_range_applies_before_its_first_tick(
    new_log: Settings,
) -> None:
    stream = new_log.stream_settings()
    other = new_log.scoring.model_copy(update={"clip_high": 0.5})
    trajectory = make_trajectory("e1")
    score = make_score(trajectory.trajectory_id, 0.5, episode_id="e1", components={"reward": 0.75},
                       config_hash=other.config_hash())  # fmt: skip
    await send_everywhere(stream, encode(make_tick(0)))
    await send_to_all(stream, TRAJECTORIES, data=encode(make_config("scoring", other)))
    await send_everywhere(stream, encode(make_tick(1)))
    items = [(b"e1", encode(event)) for event in make_episode("e1", reward=0.75)]
    await send(stream, EPISODE_EVENTS.name, items)
    await send(stream, SCORES.name, [(score.group_hint.encode(), encode(score))])
    await send_everywhere(stream, encode(make_tick(2)))
    for scores in ("recorded", "rescored"):
        name = name_of(new_log, "held", scores)
        replay = replay_of(new_log, name, start=Bound(offset=2), scores=scores, new_scoring=None)
        await replay.run()
        (replayed_score,) = await records(replay.replay_settings, SCORES.name)
        assert (replayed_score.value, replayed_score.config_hash, replayed_score.error) == (
            0.5,
            other.config_hash(),
            None,
        )


async def test_a_deleted_replay_is_gone_with_its_topics(shared_log: Settings) -> None:
    stream, name = shared_log.stream_settings(), name_of(shared_log, "del")
    manifest = await replay_of(shared_log, name, stages=("assembly",), scores="recorded", new_scoring=None).run()
    with pytest.raises(ConfigurationError, match="already"):
        await replay_of(shared_log, name).run()
    assert await delete_replay(stream, manifest, now_ms=1)
    assert name not in await read_manifests(stream)
    assert await partitions_on_broker(stream, f"{manifest.namespace}trajectories") == 0


async def test_two_replays_of_the_command_line_are_equal_in_any_environment(
    shared_log: Settings, kafka: str, tmp_path: Path
) -> None:
    path, outputs = write_settings(tmp_path, kafka, shared_log.namespace), []
    for processes, other in enumerate(ENVIRONMENTS, 1):
        process = await asyncio.create_subprocess_exec(
            ROLLBUS, "--config", str(path),
            "replay", "--from", "earliest", "--reward", "feedback", "--dry-run", "--processes", str(processes),
            env=environment(other), cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        outputs.append(output)
    assert outputs[0] == outputs[1] == outputs[2]
    assert b"assembly" in outputs[0]
