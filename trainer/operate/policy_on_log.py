"""`rollbus policy list|show|promote|rollback|evaluate|compare` on the real log."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import Evaluation, PolicyState, PolicyVersion
from rollbus.schemas.topics import EVALUATIONS
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.trainer.ledger.ledger import Ledger, LedgerRecord
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.ledger.reading_kafka import Evaluations, read_ledger, show_committed
from rollbus.trainer.operate.policy import is_quarantined_above, roll_back
from rollbus.trainer.operate.publishing import publish_all, publish_evaluation
from rollbus.trainer.process import make_log, open_backend
from rollbus.trainer.serving import serve_version
from rollbus.trainer.settings import TrainerSettings
from rollbus.trainer.validation.evaluation import difference
from rollbus.trainer.validation.validating import Validation, load_validation, measure


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """One row of `rollbus policy list`."""

    version: int
    parent: int | None
    state: PolicyState | Literal["served"]
    """`served` if another version serves now."""
    is_serving: bool
    is_head: bool
    checkpoint: str
    evaluations: tuple[Evaluation, ...] = ()
    """The newest of each name."""


def list_policy_versions(settings: TrainerSettings) -> Sequence[KnownVersion]:
    """Return every version of the settings' model, in the order of their numbers."""
    lineage, evaluations = asyncio.run(_read_versions(settings))
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
    records, evaluations = asyncio.run(_read_records(settings))
    states = [
        record
        for record in records
        if isinstance(record, PolicyVersion) and (record.model, record.version) == (settings.model, version)
    ]
    if not states:
        raise _unknown(settings, version)
    made_by = {(state.run_id, state.step) for state in states if state.step is not None}
    step = [
        record
        for record in records
        if not isinstance(record, PolicyVersion) and (record.run_id, record.step) in made_by
    ]
    return [*step, *states, *(evaluation for evaluation in evaluations if evaluation.policy_version == version)]


def evaluate_policy(
    settings: TrainerSettings, version: int, *, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Measure a version on the validation set, and publish the record."""
    validation = load_validation(settings.validation, settings.endpoint_token)
    if validation is None:
        raise ConfigurationError("the settings have no `trainer: {validation: …}`; it names the tasks and the agent")
    return asyncio.run(_evaluate(settings, validation, version, progress))


def compare_policies(settings: TrainerSettings, before: int, after: int) -> Mapping[str, tuple[float, float, float]]:
    """Return low, value and high of after − before by metric, for every evaluation that both have of one set."""
    _, evaluations = asyncio.run(_read_versions(settings))
    result: dict[str, tuple[float, float, float]] = {}
    for name, later in evaluations.get(after, {}).items():
        earlier = evaluations.get(before, {}).get(name)
        if earlier is None or earlier.set_hash != later.set_hash:
            continue
        names = [
            metric for metric in later.metrics if not metric.endswith(("_low", "_high")) and metric in earlier.metrics
        ]
        result |= {f"{name}: {metric}": difference(later, earlier, metric) for metric in names}
    if not result:
        raise ConfigurationError(
            f"versions {before} and {after} have no evaluation of the same set; "
            "measure them with `rollbus policy evaluate`"
        )
    return result


def promote_policy(settings: TrainerSettings, version: int, *, reason: str) -> None:
    """Serve a version; training goes on."""
    asyncio.run(_promote(settings, version, reason))


def roll_back_policy(settings: TrainerSettings, version: int, *, reason: str) -> tuple[int, ...]:
    """Serve an earlier version and train on from it; a running trainer is fenced and must be started again."""
    return asyncio.run(_roll_back(settings, version, reason))


def leave_quarantined(settings: TrainerSettings, version: int) -> tuple[int, ...]:
    """Train on from `version` if a version above it is quarantined; return the abandoned ones.

    Done once, it does nothing again: a supervisor may repeat the command that asks for it.
    """
    lineage = asyncio.run(_read_own_ledger(settings)).lineage
    if not is_quarantined_above(lineage, version):
        return ()
    return roll_back_policy(settings, version, reason=f"trained from {version} again, above it is quarantined")


async def _promote(settings: TrainerSettings, version: int, reason: str) -> None:
    lineage, publish = (
        (await _read_own_ledger(settings)).lineage,
        partial(publish_all, settings.kafka, settings.namespace),
    )
    async with open_backend(settings) as backend:
        await serve_version(backend, publish, lineage, settings, version=version, reason=reason, now_ms=wall_clock_ms())


async def _roll_back(settings: TrainerSettings, version: int, reason: str) -> tuple[int, ...]:
    log = make_log(settings)
    async with open_backend(settings) as backend:
        try:
            return await roll_back(log, backend, settings, version=version, reason=reason, now_ms=wall_clock_ms())
        finally:
            await log.close()


async def _evaluate(
    settings: TrainerSettings, validation: Validation, version: int, progress: Callable[[int, int], None] | None
) -> Evaluation:
    parents = (await _read_own_ledger(settings)).lineage.parents
    if parents and version not in parents:
        raise _unknown(settings, version)
    base_url = validation.settings.base_url
    if base_url is None:
        async with open_backend(settings) as backend:
            base_url = (await backend.capabilities()).inference_url
    if base_url is None:
        raise ConfigurationError("the backend serves no model to ask; set `trainer: {validation: {base_url: …}}`")
    result = await measure(
        validation,
        model=settings.model,
        version=version,
        run_id=settings.run_id,
        base_url=base_url,
        clock_ms=wall_clock_ms,
        progress=progress,
    )
    await publish_evaluation(settings.kafka, settings.namespace, result)
    return result


def _unknown(settings: TrainerSettings, version: int) -> ConfigurationError:
    return ConfigurationError(f"model {settings.model!r} has no version {version}; see `rollbus policy list`")


async def _read_versions(settings: TrainerSettings) -> tuple[Lineage, Mapping[int, Mapping[str, Evaluation]]]:
    """Return every version, and its newest evaluation of each name."""
    records, evaluations = await _read_records(settings)
    result: dict[int, dict[str, Evaluation]] = {}
    for evaluation in evaluations:
        result.setdefault(evaluation.policy_version, {})[evaluation.name] = evaluation
    return Ledger.fold(settings.run_id, settings.model, records).lineage, result


async def _read_own_ledger(settings: TrainerSettings) -> Ledger:
    return Ledger.fold(settings.run_id, settings.model, await read_ledger(settings.kafka, settings.namespace))


async def _read_records(settings: TrainerSettings) -> tuple[Sequence[LedgerRecord], Sequence[Evaluation]]:
    """Return the records of every step and version, and every evaluation of the model."""
    evaluations = Evaluations(settings.model)
    await show_committed(settings.kafka, EVALUATIONS.full_name(settings.namespace), evaluations)
    return await read_ledger(settings.kafka, settings.namespace), evaluations.records


def _state(lineage: Lineage, version: int) -> PolicyState | Literal["served"]:
    """The log says when a version begins to serve, and not when it ends: another one begins."""
    state = lineage.states[version]
    return "served" if state == "serving" and version != lineage.serving else state
