"""A shadow follows live with another reward, goes on after a restart, and is promoted by one record per stage."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from rollbus.cli.replay.load import load_replay
from rollbus.consumers.clickhouse.maintain.forget import delete_namespace
from rollbus.consumers.clickhouse.questions.saved_questions import ask, run_query
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.hosted_stages import all_stages
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.config import CurriculumConfig, GroupingConfig, RewardConfig, ScoringConfig
from rollbus.schemas.topics import SCORES, STAGE_INPUTS, TOPICS, TRAJECTORIES
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import delete_topics, ensure_topics
from rollbus.streams.replay.kafka.manifest import find_manifest, read_manifests
from rollbus.streams.replay.kafka.promote import promote
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from tests.builders import make_episode, make_score, make_tick, make_trajectory
from tests.services.replay.live import publish, records, settings_of, write_settings
from tests.services.replay.log import send_everywhere
from tests.services.streams.fixtures import send
from tests.services.streams.process import running
from tests.waiting import many, until_found

pytestmark = pytest.mark.services

NEGATED_SCORING = ScoringConfig(rewards=(RewardConfig(type="feedback", weight=-1.0),))


async def until_scored(stream: StreamSettings, count: int) -> dict[str, float | None]:
    """Wait until so many episodes have a score in the namespace; return the values."""
    scores = await until_found(lambda: records(stream, "scores"), "no scores come", is_enough=many(count))
    return {score.episode_id: score.value for score in scores}


async def until_following(stream: StreamSettings, name: str) -> None:
    """Wait until a shadow has written down from where on it follows."""
    await until_found(
        lambda: read_manifests(stream), "no shadow follows", is_enough=lambda manifests: name in manifests
    )


def episodes(*names: str) -> list[Any]:
    return [event for name in names for event in make_episode(name, reward=0.5)]


def shadow_of(settings: Settings, name: str, stop: asyncio.Event, **changes: Any) -> Replay:
    plan: dict[str, Any] = {
        "name": name,
        "start": Bound(at_end=True),
        "end": Bound(at_end=True),
        "stages": chain_of(("scoring", "grouping", "curriculum")),
        "assembly": settings.assembly,
        "scoring": settings.scoring,
        "runs": settings.runs,
        "new_scoring": NEGATED_SCORING,
        "scores": "computed",
    }
    return Replay(settings.stream_settings(), ReplayPlan(**(plan | changes)), registry=BUILT_IN, follow=stop)


async def test_a_shadow_scores_differently_beside_live_until_it_is_promoted(
    kafka: str, clickhouse: tuple[str, int], namespace: str, tmp_path: Path
) -> None:
    name = namespace.strip(".")
    database = name.replace("-", "_")
    settings = settings_of(write_settings(tmp_path, kafka, namespace,
                                          clickhouse={"host": clickhouse[0], "port": clickhouse[1],
                                                      "database": database}))  # fmt: skip
    stream = settings.stream_settings()
    await ensure_topics(stream, all_stages(settings))
    async with running(stream, all_stages(settings)):
        for names in (("e1", "e2"), ("e3",)):  # the second time it goes on where it was
            stop = asyncio.Event()
            shadow = shadow_of(settings, name, stop)
            following = asyncio.create_task(shadow.run())
            await until_following(stream, name)
            await publish(stream, episodes(*names), chunks=1, pause_s=0)
            value_by_episode = await until_scored(shadow.replay_settings, 2 if names[0] == "e1" else 3)
            stop.set()
            manifest = await following
            assert set(value_by_episode.values()) == {-0.5}
        assert (manifest.state, sorted(value_by_episode)) == ("following", ["e1", "e2", "e3"])
        assert manifest.records["scores"] >= 3
        assert await until_scored(stream, 3) == {"e1": 0.5, "e2": 0.5, "e3": 0.5}
        with pytest.raises(ConfigurationError, match=r"another configuration of .*; choose another name"):
            await replace(shadow, plan=replace(shadow.plan, new_curriculum=CurriculumConfig(mode="off"))).run()
        shadow_manifest = await find_manifest(stream, name)
        with pytest.raises(ConfigurationError, match="no function 'feedback'"):
            await promote(stream, shadow_manifest, {}, settings.runs)
        assert await promote(stream, shadow_manifest, BUILT_IN, settings.runs) == ["scoring"]
        await publish(stream, episodes("e4"), chunks=1, pause_s=0)
        assert (await until_scored(stream, 4))["e4"] == -0.5

    migrate(settings.clickhouse)
    for namespace_of_side in (stream.namespace, shadow.plan.namespace_in(stream.namespace)):
        assert await load_replay(settings.sink_settings(), namespace_of_side) > 0
    values = {"namespace": stream.namespace, "other": shadow.plan.namespace_in(stream.namespace)}
    answer = run_query(settings.clickhouse, "shadow_against_live", values)
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    scored = next(row for row in rows if row["what"] == "trajectories scored")
    assert (scored["live"], scored["shadow"]) == (3, 3), "e4 came when nobody followed any more"


async def test_a_stopped_shadow_leaves_unanswered_trajectories_to_its_restart(
    new_log: Settings,
) -> None:
    stream, name = new_log.stream_settings(), new_log.namespace.strip(".")
    live, turned = (ScoringConfig(rewards=(RewardConfig(type="judge", name="judge", weight=w),)) for w in (1.0, -1.0))
    trajectories = [make_trajectory(f"e{number}") for number in range(3)]
    live_scores = [
        make_score(
            trajectory.trajectory_id, 0.5, episode_id=trajectory.episode_id, components={"judge": 0.5},
            config_hash=live.config_hash(),
        )
        for trajectory in trajectories
    ]  # fmt: skip
    key = trajectories[0].group_hint.encode()
    for number, trajectory in enumerate(trajectories):
        await send_everywhere(stream, encode(make_tick(number)))
        await send(stream, TRAJECTORIES.name, [(key, encode(trajectory))])
    await send_everywhere(stream, encode(make_tick(len(trajectories))))
    await send(stream, SCORES.name, [(key, encode(live_scores[0]))])
    for answered in (1, 3):
        stop = asyncio.Event()
        shadow = shadow_of(new_log, name, stop, start=Bound(), scoring=live, new_scoring=turned)
        following = asyncio.create_task(shadow.run())
        await until_following(stream, name)
        await until_scored(shadow.replay_settings, answered)
        await asyncio.sleep(1)  # it waits for what comes next
        stop.set()
        manifest = await asyncio.wait_for(following, 120)
        shadow_scores = await records(shadow.replay_settings, SCORES.name)
        assert [(score.episode_id, score.value) for score in shadow_scores] == [
            (f"e{n}", -0.5) for n in range(answered)
        ]
        assert manifest.state == "following"
        await send(stream, SCORES.name, [(key, encode(score)) for score in live_scores[1:]])
    await shadow.run()  # to be stopped at once
    assert await records(shadow.replay_settings, SCORES.name) == shadow_scores


async def test_a_second_promotion_does_not_revert_the_first(
    new_log: Settings,
) -> None:
    stream, stop, name = new_log.stream_settings(), asyncio.Event(), new_log.namespace.strip(".")
    await send(stream, STAGE_INPUTS["scoring"].name, [(None, encode(make_tick(0)))])
    stop.set()
    changes: dict[str, dict[str, Any]] = {
        "pairs": {"new_grouping": GroupingConfig(group_size=2)},
        "all": {"new_curriculum": CurriculumConfig(mode="off")},
    }
    manifests = {}
    for change_name, change in changes.items():
        shadow = shadow_of(new_log, f"{name}-{change_name}", stop, new_scoring=None, scores="recorded", **change)
        await shadow.run()
        manifests[change_name] = await find_manifest(stream, shadow.plan.name)
    assert "curriculum.main" in await promote(stream, manifests["pairs"], BUILT_IN, new_log.runs)
    with pytest.raises(ConfigurationError, match=r"all' would set grouping\.group_size from 2 to 3, .* in run main"):
        await promote(stream, manifests["all"], BUILT_IN, new_log.runs)
    assert "curriculum.main" in await promote(stream, manifests["pairs"], BUILT_IN, new_log.runs)


def load_settings_of(kafka: str, clickhouse: tuple[str, int], namespace: str, folder: Path) -> Settings:
    """Settings of a replay's own namespace, with a database of its own."""
    database = {"host": clickhouse[0], "port": clickhouse[1], "database": namespace.strip(".").replace("-", "_")}
    return settings_of(write_settings(folder, kafka, f"replay-{namespace}", clickhouse=database))


def stored_tables(settings: Settings) -> set[str]:
    """The episodes whose scores stand in ClickHouse."""
    return {str(row[0]) for row in ask(settings.clickhouse, "SELECT DISTINCT episode_id FROM scores").rows}


async def test_a_shadow_is_loaded_as_far_as_it_is_though_it_writes_on(
    kafka: str, clickhouse: tuple[str, int], namespace: str, tmp_path: Path
) -> None:
    settings = load_settings_of(kafka, clickhouse, namespace, tmp_path)
    stream = settings.stream_settings()
    await ensure_topics(stream)
    await send(stream, SCORES.name, [(b"k", encode(make_score(episode_id="e1")))])

    async def write_on(producer: AIOKafkaProducer) -> None:
        while True:
            await producer.send_and_wait(SCORES.full_name(stream.namespace), encode(make_tick(0)), partition=0)

    async with AIOKafkaProducer(**stream.kafka.client_options()) as producer:
        writing = asyncio.create_task(write_on(producer))
        async with asyncio.timeout(120):
            assert await load_replay(settings.sink_settings(), stream.namespace) > 0
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    assert stored_tables(settings) == {"e1"}


async def test_rows_of_a_replay_that_is_gone_do_not_stay_among_those_of_its_name(
    kafka: str, clickhouse: tuple[str, int], namespace: str, tmp_path: Path
) -> None:
    settings = load_settings_of(kafka, clickhouse, namespace, tmp_path)
    stream = settings.stream_settings()
    for episode in ("e1", "e2"):
        await delete_topics(stream, [topic.full_name(stream.namespace) for topic in TOPICS])
        await ensure_topics(stream)
        await send(stream, SCORES.name, [(b"k", encode(make_score(trajectory_id(episode), episode_id=episode)))])
        await load_replay(settings.sink_settings(), stream.namespace)
        assert stored_tables(settings) == {episode}
    assert delete_namespace(settings.clickhouse, stream.namespace) > 0
    assert stored_tables(settings) == set()
    with pytest.raises(ConfigurationError, match="not the namespace of a replay"):
        delete_namespace(settings.clickhouse, "rollbus.")
