"""`rollbus policy list|promote|rollback` on the real log."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.schemas.codec import decode
from rollbus.schemas.steps import PolicyState
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.ledger import Ledger
from rollbus.trainer.policy import promotion, roll_back
from rollbus.trainer.process_kafka import backend_of, log_of
from rollbus.trainer.publishing_kafka import publish_all
from rollbus.trainer.reading_kafka import read_all
from rollbus.trainer.settings import TrainerSettings


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """One row of `rollbus policy list`."""

    version: int
    parent: int | None
    state: PolicyState
    is_serving: bool
    is_head: bool
    checkpoint: str


def list_policy_versions(settings: TrainerSettings) -> Sequence[KnownVersion]:
    """Return every version of the settings' model, in the order of their numbers."""
    lineage = asyncio.run(_ledger(settings)).lineage
    return [
        KnownVersion(
            version=version,
            parent=parent,
            state=lineage.states[version],
            is_serving=version == lineage.serving,
            is_head=version == lineage.head,
            checkpoint=lineage.checkpoints[version],
        )
        for version, parent in sorted(lineage.parents.items())
    ]


def promote_policy(settings: TrainerSettings, version: int, *, reason: str) -> None:
    """Serve a version; training goes on undisturbed."""
    asyncio.run(_promote(settings, version, reason))


def roll_back_policy(settings: TrainerSettings, version: int, *, reason: str) -> tuple[int, ...]:
    """Serve an earlier version and train on from it; a running trainer is fenced and must be started again."""
    return asyncio.run(_roll_back(settings, version, reason))


async def _promote(settings: TrainerSettings, version: int, reason: str) -> None:
    ledger, loop_settings = await _ledger(settings), settings.loop_settings()
    publications = promotion(ledger, loop_settings, version=version, reason=reason, now_ms=_now_ms())
    async with backend_of(settings) as backend:
        await backend.promote(version)
    await publish_all(settings.kafka, settings.namespace, publications)


async def _roll_back(settings: TrainerSettings, version: int, reason: str) -> tuple[int, ...]:
    log = log_of(settings)
    async with backend_of(settings) as backend:
        try:
            return await roll_back(
                log, backend, settings.loop_settings(), version=version, reason=reason, now_ms=_now_ms()
            )
        finally:
            await log.close()


async def _ledger(settings: TrainerSettings) -> Ledger:
    ledger = Ledger(settings.run_id, settings.model)
    for topic in (POLICY_VERSIONS, TRAINING_STEPS):
        for frame in await read_all(settings.kafka, topic.full_name(settings.namespace)):
            ledger.apply(decode(frame.value))
    return ledger


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
