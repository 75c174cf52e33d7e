"""`rollbus policy list|show|promote|rollback|evaluate|compare` on the real log."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.steps import Evaluation, PolicyState, PolicyVersion
from rollbus.schemas.topics import EVALUATIONS
from rollbus.trainer.evaluation import difference
from rollbus.trainer.ledger import Ledger, LedgerRecord
from rollbus.trainer.lineage import Lineage
from rollbus.trainer.policy import promotion, roll_back
from rollbus.trainer.process_kafka import backend_of, log_of
from rollbus.trainer.publishing_kafka import publish_all, publish_evaluation
from rollbus.trainer.reading_kafka import Evaluations, look
from rollbus.trainer.report_kafka import ledger_records
from rollbus.trainer.settings import TrainerSettings
from rollbus.trainer.validating import Validation, measure
from rollbus.trainer.validation_settings import validation_of


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """One row of `rollbus policy list`."""

    version: int
    parent: int | None
    state: PolicyState | Literal["served"]
    """`served` where another version serves by now."""
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
            state=_state(lineage, version),
            is_serving=version == lineage.serving,
            is_head=version == lineage.head,
            checkpoint=lineage.checkpoints[version],
            evaluations=tuple(evaluations.get(version, {}).values()),
        )
        for version, parent in sorted(lineage.parents.items())
    ]


def show_policy_version(settings: TrainerSettings, version: int) -> Sequence[LedgerRecord | Evaluation]:
    """Return every record of a version: of the step that made it, each change of its state, how it was measured."""
    records, evaluations = asyncio.run(_records(settings))
    states = [
        each
        for each in records
        if isinstance(each, PolicyVersion) and (each.model, each.version) == (settings.model, version)
    ]
    if not states:
        raise _unknown(settings, version)
    made_by = {(each.run_id, each.step) for each in states if each.step is not None}
    step = [each for each in records if not isinstance(each, PolicyVersion) and (each.run_id, each.step) in made_by]
    return [*step, *states, *(each for each in evaluations if each.policy_version == version)]


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
    parents = (await _ledger(settings)).lineage.parents
    if parents and version not in parents:
        raise _unknown(settings, version)
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


def _unknown(settings: TrainerSettings, version: int) -> ConfigurationError:
    return ConfigurationError(f"model {settings.model!r} has no version {version}; see `rollbus policy list`")


async def _known(settings: TrainerSettings) -> tuple[Lineage, Mapping[int, Mapping[str, Evaluation]]]:
    """Every version, and its newest evaluation of each name."""
    records, evaluations = await _records(settings)
    found: dict[int, dict[str, Evaluation]] = {}
    for each in evaluations:
        found.setdefault(each.policy_version, {})[each.name] = each
    return _folded(settings, records).lineage, found


async def _ledger(settings: TrainerSettings) -> Ledger:
    return _folded(settings, await ledger_records(settings))


def _folded(settings: TrainerSettings, records: Iterable[LedgerRecord]) -> Ledger:
    ledger = Ledger(settings.run_id, settings.model)
    for record in records:
        ledger.apply(record)
    return ledger


async def _records(settings: TrainerSettings) -> tuple[Sequence[LedgerRecord], Sequence[Evaluation]]:
    """Of every step and version, and of every evaluation of the model."""
    evaluations = Evaluations(settings.model)
    await look(settings.kafka, EVALUATIONS.full_name(settings.namespace), evaluations)
    return await ledger_records(settings), evaluations.found


def _state(lineage: Lineage, version: int) -> PolicyState | Literal["served"]:
    """The log says of a version that it serves from then on, and of the next one that served that it does."""
    state = lineage.states[version]
    return "served" if state == "serving" and version != lineage.serving else state


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
