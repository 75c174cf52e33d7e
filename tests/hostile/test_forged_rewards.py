"""Who may set which reward is who holds the source's key, not who writes its name."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.producers.sending.sink import Outbound
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import make_alias, make_alias_reward, make_episode, make_reward, make_tick
from tests.hostile.attacker import CHECKERS_KEY, STOLEN, Door, forgeries

CONFIG = AssemblyConfig(reward_sources={"correct": ("checker",)}, signed_sources=("checker",))
WINNING_REWARD = make_reward("e1", 1.0, name="correct", source="checker")
FORGED_HEADERS = {
    how: headers for how, headers in forgeries(EPISODE_EVENTS, WINNING_REWARD).items() if how != "a source's key"
}


async def trajectory(door: Door) -> Trajectory:
    """Write the rest of the episode; return what assembly makes of it."""
    outputs = [
        output_record for event in make_episode("e1", turns=1, reward=None) for output_record in await door.write(event)
    ]
    (assembled,) = [output for output in outputs if isinstance(output, Trajectory)]
    return assembled


def values(assembled: Trajectory) -> list[tuple[str, str, float]]:
    return [(reward.name, reward.source, reward.value) for reward in assembled.rewards]


@pytest.mark.parametrize("how", FORGED_HEADERS)
async def test_a_reward_in_the_name_of_a_source_counts_only_with_its_signature(how: str) -> None:
    door = Door(AssemblyStage(CONFIG))
    (drop,) = await door.write(WINNING_REWARD, FORGED_HEADERS[how])
    assert drop.reason == "reward_not_allowed"
    assert values(await trajectory(door)) == []


async def test_a_signature_counts_only_for_the_rewards_of_its_source() -> None:
    door = Door(AssemblyStage(CONFIG))
    assert await door.write_signed(WINNING_REWARD, "checker") == []
    (drop,) = await door.write_signed(replace(WINNING_REWARD, event_id="x", source="judge", name="correct"), "checker")
    assert drop.reason == "reward_not_allowed"
    assert values(await trajectory(door)) == [("correct", "checker", 1.0)]


async def test_a_stranger_cannot_take_the_id_of_a_later_report() -> None:
    """The id of a report is made of episode, name and key, so that it is known beforehand."""
    door = Door(AssemblyStage(CONFIG))
    for earlier in (
        WINNING_REWARD,
        replace(WINNING_REWARD, value=-1.0),
        replace(WINNING_REWARD, source="agent", name="free", value=-1.0),
    ):
        await door.write(earlier)
    assert await door.write_signed(WINNING_REWARD, "checker") == []
    assert ("correct", "checker", 1.0) in values(await trajectory(door))


async def test_a_report_by_alias_is_checked_and_stays_signed_on_its_way() -> None:
    door = Door(AliasStage(CONFIG))
    await door.write_signed(make_tick(0))
    by_alias = make_alias_reward("order-7", 1.0, name="correct", source="checker")
    (drop,) = await door.write(by_alias)
    assert (drop.reason, drop.stage) == ("reward_not_allowed", "alias")
    await door.write(replace(by_alias, source="agent", name="free"))
    assert await door.write_signed(by_alias, "checker") == []
    processed = await door.work.process([door.append(make_alias("order-7", "e1"))])
    assert sorted(str(out.signer) for out in processed.outputs) == ["None", "checker"]
    (conflict,) = await door.write_signed(replace(by_alias, value=0.0), "checker")
    assert (conflict.reason, conflict.stage) == ("duplicate_conflict", "alias")


async def test_the_alias_stage_signs_no_reward_without_an_alias() -> None:
    door = Door(AliasStage(CONFIG))
    (drop,) = await door.write(WINNING_REWARD)
    assert drop.reason == "reward_not_allowed"
    processed = await door.work.process([door.append(replace(WINNING_REWARD, source="agent"))])
    assert [out.signer for out in processed.outputs] == [None]


def test_a_producer_with_a_sources_key_signs_that_sources_rewards_alone() -> None:
    sink = KafkaSink(KafkaConnection(), reward_keys={"checker": CHECKERS_KEY})
    door = Door(AssemblyStage(CONFIG))

    def signer(record: Any, key: bytes = b"e1") -> str | None:
        out = Outbound(door.topic, key, encode(record), 0)
        raw = replace(door.append(record), key=key, headers=tuple(sink._signature(out)))
        return door.signing.signer_of(door.topic, raw)

    assert signer(WINNING_REWARD) == "checker"
    assert signer(replace(WINNING_REWARD, source="agent")) is None
    assert signer(make_tick(0)) is None
    assert KafkaSink(KafkaConnection())._signature(Outbound(door.topic, b"e1", encode(WINNING_REWARD), 0)) == []
    stolen = KafkaSink(KafkaConnection(), reward_keys={"checker": STOLEN})
    out = Outbound(ALIASES.full_name("n."), b"a", encode(WINNING_REWARD), 0)
    raw = replace(door.append(WINNING_REWARD), key=b"a", headers=tuple(stolen._signature(out)))
    assert door.signing.signer_of(out.topic, raw) is None


def test_an_unused_setting_does_not_change_the_configuration_hash() -> None:
    """Recorded outputs name the hash: a replay by a newer release gives the same one."""
    assert "signed_sources" not in AssemblyConfig().model_dump_json()
    assert CONFIG.config_hash() != AssemblyConfig(reward_sources={"correct": ("checker",)}).config_hash()
