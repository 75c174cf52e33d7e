"""Roll back: train on from an earlier version.

A rollback acts as the trainer of the model: it fences the running one, closes the open step if that can be trained, and
only then moves log and backend. The fenced trainer ends; started again, it trains from the version rolled back to. Log
first, then backend: after a crash in between the trainer refuses to start, and rolling back again completes it. One
that is refused does not fence the trainer: what the log says is looked at before.
"""

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import PolicyState
from rollbus.trainer.backends.protocol import Backend, Capabilities, Versions
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.ledger.log import TrainerLog
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.loop.taking_over import read_ledger
from rollbus.trainer.serving import publish_states, require_sound, unknown_version
from rollbus.trainer.settings import TrainerSettings


async def roll_back(
    log: TrainerLog, backend: Backend, settings: TrainerSettings, *, version: int, reason: str, now_ms: int
) -> tuple[int, ...]:
    """Train on from `version`; return the abandoned versions.

    Raise ConfigurationError if it is not an ancestor, or quarantined: it is served from then on.
    """
    before = (await read_ledger(log, settings)).lineage
    if before.head is not None:  # else the log names no version yet, and taking over writes the first
        await _find_given_up(before, backend, settings, version)
    trainer = Trainer(log, backend, settings)
    await trainer.settle()
    lineage = trainer.ledger.lineage
    given_up = await _find_given_up(lineage, backend, settings, version)  # again: the open step is closed now
    states: dict[int, PolicyState] = {**dict.fromkeys(given_up, "rolled_back"), version: "serving"}
    await log.publish(publish_states(lineage, settings, states, reason=reason, now_ms=now_ms))
    await backend.promote(version, rollback=True)
    return given_up


async def _find_given_up(
    lineage: Lineage, backend: Backend, settings: TrainerSettings, version: int
) -> tuple[int, ...]:
    """Return the versions that a rollback abandons; ConfigurationError if it is refused."""
    given_up = versions_above(lineage, version)
    require_sound(lineage, settings.model, version)
    _check_possible(lineage, version, await backend.capabilities(), await backend.versions())
    return given_up


def versions_above(lineage: Lineage, version: int) -> tuple[int, ...]:
    """Return the versions between the head and an ancestor of it, newest first."""
    head = lineage.head
    lags = {} if head is None else lineage.lags(head)
    if version not in lags:
        raise unknown_version(lineage, "this model", version)
    return tuple(ancestor for ancestor, lag in lags.items() if lag < lags[version])


def is_quarantined_above(lineage: Lineage, version: int) -> bool:
    """Say whether what is trained now goes on from a quarantined version above this one.

    Raise ConfigurationError if so and this one has never served: rolled back to, it would serve all without a canary.
    """
    quarantined = any(
        lineage.states[later_version] == "quarantined" for later_version in versions_above(lineage, version)
    )
    if quarantined and (state := lineage.states[version]) != "serving":
        raise ConfigurationError(
            f"version {version}, now {state.replace('_', ' ')}, has never served; training that goes on from it would "
            f"serve it to all. Train on from the one that serves, `--from {lineage.serving}`, or promote it first"
        )
    return quarantined


def _check_possible(lineage: Lineage, version: int, capabilities: Capabilities, versions: Versions) -> None:
    """Raise ConfigurationError if the backend would refuse: it could not train from the head that the log names."""
    stored_versions = {known_version.version for known_version in versions.known}
    if version not in stored_versions and lineage.head is not None:
        there = ", ".join(str(lag) for lag in lineage.lags(lineage.head) if lag in stored_versions)
        raise ConfigurationError(
            f"version {version} has no checkpoint any more, retention removed it; those that have one are: {there}"
        )
    if not capabilities.rolls_back and versions.head != version:
        remedy = capabilities.rollback_remedy or (
            f"stop its server, move the checkpoints above {version} away, start it, and roll back again"
        )
        raise ConfigurationError(
            f"backend {capabilities.backend} trains from its newest version, {versions.head}, and cannot go back; "
            f"{remedy}"
        )
