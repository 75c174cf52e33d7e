"""Time, configurations and exclusions are the owner's, although producers write the topic that they are in."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import ATTEMPT_HEADER
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.schemas.signing import OWNER, SIGNATURE_HEADER, Signing
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS
from rollbus.streams.operate.forget import RootedEpisode, exclusions
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import (
    START_MS,
    make_alias,
    make_config,
    make_ended,
    make_episode,
    make_reward,
    make_started,
    make_tick,
    make_turn,
)
from tests.hostile.attacker import KEY, Door, forgeries, keys

FOREVER = 2**53
(EXCLUSION,) = exclusions([RootedEpisode("e1", "e1")], reason="forgotten on request", now_ms=START_MS)
FORGED_CONTROLS = (
    make_tick(1, stream_time_ms=FOREVER),
    make_config("assembly", AssemblyConfig(target_model="nobody")),
    EXCLUSION,
)


@pytest.mark.parametrize("forged", FORGED_CONTROLS, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("how", forgeries(EPISODE_EVENTS, FORGED_CONTROLS[0]))
async def test_assembly_takes_no_unsigned_control_record(forged: Any, how: str) -> None:
    door = Door(AssemblyStage(AssemblyConfig()))
    await door.write_signed(make_tick(0))
    await door.write(make_started())
    assert await door.write(forged, forgeries(EPISODE_EVENTS, forged)[how]) == []
    assert door.refusals == ["UntrustedRecordError"]
    state = door.work.state
    assert state.clock.now_ms == START_MS
    assert state.config.value == AssemblyConfig()
    outputs = [output for event in make_episode("e1", turns=1)[1:] for output in await door.write(event)]
    assert [type(output) for output in outputs] == [Trajectory]


@pytest.mark.parametrize("forged", FORGED_CONTROLS[:2], ids=lambda record: type(record).__name__)
async def test_the_alias_stage_takes_no_unsigned_control_record(forged: Any) -> None:
    door = Door(AliasStage(AssemblyConfig()))
    await door.write(make_alias("order-7"))
    for headers in forgeries(ALIASES, forged).values():
        assert await door.write(forged, headers) == []
    assert set(door.refusals) == {"UntrustedRecordError"}
    assert door.work.state.clock.now_ms == 0


async def test_records_signed_by_the_owner_take_effect() -> None:
    door = Door(AssemblyStage(AssemblyConfig()))
    await door.write_signed(make_tick(0))
    await door.write_signed(make_config("assembly", AssemblyConfig(min_episode_length=3)))
    await door.write(make_started())
    (drop,) = await door.write_signed(EXCLUSION)
    assert drop.reason == "excluded"
    assert door.work.state.clock.now_ms == START_MS
    assert door.work.state.config.value.min_episode_length == 3
    assert door.refusals == []


async def test_both_keys_hold_while_one_replaces_the_other() -> None:
    old, both, new = keys("k" * 16), keys("n" * 16, "k" * 16), keys("n" * 16)
    door = Door(AssemblyStage(AssemblyConfig()), signing=both)
    tick = make_tick(3)
    of_old, of_both = (Door(door.stage, signing=signing).append(tick, OWNER) for signing in (old, both))
    for signing in (old, new, both):
        assert signing.signer_of(door.topic, of_old) == (OWNER if signing is not new else None)
        assert signing.signer_of(door.topic, of_both) == (OWNER if signing is not old else None)
    await door.write_signed(tick)
    assert door.refusals == []


async def test_unsigned_records_count_if_the_broker_dates_them_before_the_key() -> None:
    signing = keys(KEY, signed_since="2026-01-01T00:00:00Z")
    door = Door(AssemblyStage(AssemblyConfig()), signing=signing)
    assert signing.signed_since is not None
    moment = int(signing.signed_since.timestamp() * 1000)
    await door.write(make_tick(0), timestamp=moment - 1)
    assert door.refusals == []
    await door.write(make_tick(1), timestamp=moment)
    assert door.refusals == ["UntrustedRecordError"]
    await door.write(make_tick(1), forgeries(EPISODE_EVENTS, make_tick(1))["another key"], timestamp=moment - 1)
    assert door.refusals == ["UntrustedRecordError"] * 2


@pytest.mark.parametrize("name", [SIGNATURE_HEADER, ATTEMPT_HEADER, "round"])
async def test_a_header_without_a_value_ends_no_stage(name: str) -> None:
    """Kafka takes such headers from any client; the unsigned tick becomes a dead letter, and the episode goes on."""
    door = Door(AssemblyStage(AssemblyConfig()))
    await door.write(make_tick(0), headers=[(name, None)])
    for event in make_episode("e1"):
        await door.write(event, headers=[(name, None)])
    assert [letter.error_class for letter in door.letters] == ["UntrustedRecordError"]


def test_keys_are_long_enough_and_are_not_printed() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        keys("short")
    assert not Signing.model_validate({"owner": "", "sources": {"checker": ""}}).is_used
    for name in (OWNER, "", "a\x1fb"):
        with pytest.raises(ValueError, match="cannot be the name"):
            keys(KEY, sources={name: "c" * 16})
    assert KEY not in repr(keys(KEY))


async def test_a_producer_may_exclude_its_own_episode() -> None:
    door = Door(AssemblyStage(AssemblyConfig()))
    await door.write(make_started())
    own_exclusion = replace(EXCLUSION, writer_id="w1", sequence=1, event_id="x", reason="producer_queue_full")
    (drop,) = await door.write(own_exclusion)
    assert (drop.reason, door.refusals) == ("excluded", [])


async def test_a_stranger_cannot_take_the_id_of_a_later_exclusion() -> None:
    """The operator's exclusion has a known id: a report under the same id came first, and the exclusion was refused."""
    door = Door(AssemblyStage(AssemblyConfig()))
    for event in make_episode("e1", turns=1):
        await door.write(event)
    await door.write(replace(make_reward("e1", 1.0), event_id=EXCLUSION.event_id))
    (revision,) = await door.write_signed(EXCLUSION)
    assert isinstance(revision, RewardRevised)
    assert revision.excluded


async def test_a_signed_record_that_is_written_again_changes_nothing() -> None:
    door = Door(AssemblyStage(AssemblyConfig()))
    first, second = make_tick(0), make_tick(1)
    for tick in (first, second):
        await door.write_signed(tick)
    await door.write(first, door.signing.sign(OWNER, door.topic, b"e1", encode(first)))
    assert door.work.state.clock.now_ms == second.stream_time_ms
    assert door.refusals == []


async def test_a_strangers_end_leaves_an_episode_untrained() -> None:
    """Who knows an episode's id may write to it. An end without the real writers' counts is an end with a hole."""
    door = Door(AssemblyStage(AssemblyConfig(inactivity_ms=1_000)))
    await door.write_signed(make_tick(0))
    for event in (make_started(), make_turn("e1", 1)):
        await door.write(event)
    await door.write(make_ended("e1", 0, writer="stranger", writer_ids=("stranger",)))
    outputs = [output for number in range(1, 4) for output in await door.write_signed(make_tick(number))]
    (trajectory,) = [output for output in outputs if isinstance(output, Trajectory)]
    assert (trajectory.trainable, trajectory.untrainable_reason) == (False, "missing_events")
