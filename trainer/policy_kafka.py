"""`rollbus policy list|promote|rollback|evaluate|compare` on the real log."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollbus.schemas.codec import decode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.steps import Evaluation, PolicyState
from rollbus.schemas.topics import EVALUATIONS, POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.evaluation import difference
from rollbus.trainer.ledger import Ledger
from rollbus.trainer.lineage import Lineage
from rollbus.trainer.policy import promotion, roll_back
from rollbus.trainer.process_kafka import backend_of, log_of
from rollbus.trainer.publishing_kafka import publish_all, publish_evaluation
from rollbus.trainer.reading_kafka import EvaluationReader, read_all
from rollbus.trainer.settings import TrainerSettings
from rollbus.trainer.validating import Validation, measure
from rollbus.trainer.validation_settings import validation_of


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """One row of `rollbus policy list`."""

    version: int
    parent: int | None
    state: PolicyState
    is_serving: bool
    is_head: bool
    checkpoint: str
    evaluations: tuple[Evaluation, ...] = ()
    """The newest of each name."""


def list_policy_versions(settings: TrainerSettings) -> Sequence[KnownVersion]:
    """Return every version of the settings' model, in the order of their numbers."""
    lineage, evaluations = asyncio.run(_known(settings))
    return [
        KnownVersion(
            version=version,
            parent=parent,
            state=lineage.states[version],
            is_serving=version == lineage.serving,
            is_head=version == lineage.head,
            checkpoint=lineage.checkpoints[version],
            evaluations=tuple(evaluations.get(version, {}).values()),
        )
        for version, parent in sorted(lineage.parents.items())
    ]


def evaluate_policy(
    settings: TrainerSettings, version: int, *, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Measure a version on the validation set, and write the record."""
    validation = validation_of(settings)
    if validation is None:
        raise ConfigurationError("the settings have no `trainer: {validation: …}`; it says what is played, and by whom")
    return asyncio.run(_evaluate(settings, validation, version, progress))


def compare_policies(settings: TrainerSettings, before: int, after: int) -> Mapping[str, tuple[float, float, float]]:
    """Return low, value and high of after − before by metric, for every evaluation that both have of one set."""
    _, evaluations = asyncio.run(_known(settings))
    found: dict[str, tuple[float, float, float]] = {}
    for name, later in evaluations.get(after, {}).items():
        earlier = evaluations.get(before, {}).get(name)
        if earlier is None or earlier.set_hash != later.set_hash:
            continue
        names = [each for each in later.metrics if not each.endswith(("_low", "_high")) and each in earlier.metrics]
        found |= {f"{name}: {metric}": difference(later, earlier, metric) for metric in names}
    if not found:
        raise ConfigurationError(
            f"versions {before} and {after} have no evaluation of the same set; "
            "measure them with `rollbus policy evaluate`"
        )
    return found


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


async def _evaluate(
    settings: TrainerSettings, validation: Validation, version: int, progress: Callable[[int, int], None] | None
) -> Evaluation:
    base_url = validation.base_url
    if base_url is None:
        async with backend_of(settings) as backend:
            base_url = (await backend.capabilities()).inference_url
    if base_url is None:
        raise ConfigurationError("the backend serves no model to ask; set `trainer: {validation: {base_url: …}}`")
    found = await measure(
        validation,
        model=settings.model,
        version=version,
        run_id=settings.run_id,
        base_url=base_url,
        clock_ms=_now_ms,
        progress=progress,
    )
    await publish_evaluation(settings.kafka, settings.namespace, found)
    return found


async def _known(settings: TrainerSettings) -> tuple[Lineage, Mapping[int, Mapping[str, Evaluation]]]:
    """Every version, and its newest evaluation of each name."""
    reader = EvaluationReader(settings.kafka, EVALUATIONS.full_name(settings.namespace), settings.model)
    found: dict[int, dict[str, Evaluation]] = {}
    try:
        for each in await reader.evaluations():
            found.setdefault(each.policy_version, {})[each.name] = each
    finally:
        await reader.close()
    return (await _ledger(settings)).lineage, found


async def _ledger(settings: TrainerSettings) -> Ledger:
    ledger = Ledger(settings.run_id, settings.model)
    for topic in (POLICY_VERSIONS, TRAINING_STEPS):
        for frame in await read_all(settings.kafka, topic.full_name(settings.namespace)):
            ledger.apply(decode(frame.value))
    return ledger


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
