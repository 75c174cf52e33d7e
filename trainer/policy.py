"""What an operator does with policy versions: serve one, or roll back to one and train on from there.

A rollback works as the trainer of the model: it fences the one that runs, closes the step that it left open where that
can be trained, and only then moves log and backend. The fenced trainer ends; started again, it goes on from the version
rolled back to. Log first, then backend: a crash in between shows at the trainer's start, and rolling back again
completes it.
"""

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.steps import PolicyState, PolicyVersion
from rollbus.schemas.topics import POLICY_VERSIONS, RUN_LOG
from rollbus.trainer.backends.protocol import Backend, Capabilities, Versions
from rollbus.trainer.ledger import Ledger
from rollbus.trainer.lineage import Lineage
from rollbus.trainer.log import Publication, TrainerLog
from rollbus.trainer.loop import Trainer
from rollbus.trainer.step_context import LoopSettings


async def roll_back(
    log: TrainerLog, backend: Backend, settings: LoopSettings, *, version: int, reason: str, now_ms: int
) -> tuple[int, ...]:
    """Train on from `version`; return the versions given up. Raises ConfigurationError for one that is no ancestor."""
    trainer = Trainer(log, backend, settings)
    await trainer.settle()
    lineage = trainer.ledger.lineage
    given_up = versions_above(lineage, version)
    _check_possible(lineage, version, await backend.capabilities(), await backend.versions())
    records = [_record(lineage, settings, each, "rolled_back", reason, now_ms) for each in given_up]
    records.append(_record(lineage, settings, version, "serving", reason, now_ms))
    await log.publish([each for record in records for each in _everywhere(settings, record)])
    await backend.promote(version, rollback=True)
    return given_up


def promotion(ledger: Ledger, settings: LoopSettings, *, version: int, reason: str, now_ms: int) -> list[Publication]:
    """Return the records that say that a version is served from now on; the backend is told before they are written."""
    if version not in ledger.lineage.parents:
        raise ConfigurationError(_unknown(ledger.lineage, settings.model, version))
    if ledger.lineage.states[version] == "rolled_back":
        raise ConfigurationError(
            f"version {version} of {settings.model!r} was rolled back; serve another, or roll back to an ancestor of it"
        )
    return _everywhere(settings, _record(ledger.lineage, settings, version, "serving", reason, now_ms))


def versions_above(lineage: Lineage, version: int) -> tuple[int, ...]:
    """Return what lies between the head and an ancestor of it, newest first."""
    head = lineage.head
    lags = {} if head is None else lineage.lags(head)
    if version not in lags:
        raise ConfigurationError(_unknown(lineage, "this model", version))
    return tuple(each for each, lag in lags.items() if lag < lags[version])


def _check_possible(lineage: Lineage, version: int, told: Capabilities, versions: Versions) -> None:
    """ConfigurationError where the backend would refuse: the log would then name a head that it cannot train from."""
    kept = {each.version for each in versions.known}
    if version not in kept and lineage.head is not None:
        there = ", ".join(str(each) for each in lineage.lags(lineage.head) if each in kept)
        raise ConfigurationError(
            f"version {version} has no checkpoint any more, retention removed it; those that have one are: {there}"
        )
    if not told.rolls_back and versions.head != version:
        raise ConfigurationError(
            f"backend {told.backend} trains and serves its newest version, {versions.head}, and cannot go back; stop "
            f"its server, move the checkpoints above {version} away, start it, and roll back again"
        )


def _unknown(lineage: Lineage, model: str, version: int) -> str:
    known = ", ".join(map(str, lineage.lags(lineage.head))) if lineage.head is not None else "none"
    return f"version {version} of {model} is not the head or an ancestor of it; those are: {known}"


def _record(
    lineage: Lineage, settings: LoopSettings, version: int, state: PolicyState, reason: str, now_ms: int
) -> PolicyVersion:
    return PolicyVersion(
        model=settings.model,
        version=version,
        parent=lineage.parents[version],
        run_id=settings.run_id,
        checkpoint=lineage.checkpoints[version],
        state=state,
        reason=reason,
        changed_at_ms=now_ms,
    )


def _everywhere(settings: LoopSettings, record: PolicyVersion) -> list[Publication]:
    return [
        Publication(POLICY_VERSIONS, settings.model, record),
        Publication(RUN_LOG, settings.run_id, record),
    ]
