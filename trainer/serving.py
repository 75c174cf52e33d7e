"""Serve a version after its step: the one way, for the gate and for an operator alike.

The backend serves it first, then the log says so. After a crash in between, the trainer's next start lets the backend
serve what the log says (`taking_over`); promoting the version again completes it.
"""

from collections.abc import Awaitable, Callable, Sequence

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import PolicyState, PolicyVersion
from rollbus.trainer.backends.protocol import Backend
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.ledger.log import Publication, make_announcements
from rollbus.trainer.settings import TrainerSettings

Publish = Callable[[Sequence[Publication]], Awaitable[object]]


async def serve_version(
    backend: Backend,
    publish: Publish,
    lineage: Lineage,
    settings: TrainerSettings,
    *,
    version: int,
    reason: str,
    now_ms: int,
) -> None:
    """Serve a version from now on; raises ConfigurationError for one that is unknown, quarantined or rolled back."""
    if version not in lineage.parents:
        raise unknown_version(lineage, settings.model, version)
    require_sound(lineage, settings.model, version)
    await backend.promote(version)
    await publish(publish_states(lineage, settings, {version: "serving"}, reason=reason, now_ms=now_ms))


def require_sound(lineage: Lineage, model: str, version: int) -> None:
    """Raise ConfigurationError for a version that was quarantined or rolled back."""
    if (state := lineage.states[version]) in ("rolled_back", "quarantined"):
        raise ConfigurationError(
            f"version {version} of {model!r} was {state.replace('_', ' ')}; serve another, or roll back to an ancestor "
            "of it"
        )


def publish_states(
    lineage: Lineage, settings: TrainerSettings, states: dict[int, PolicyState], *, reason: str, now_ms: int
) -> list[Publication]:
    """Return the records that say which state versions have from now on: for the model, and for the run."""
    publications: list[Publication] = []
    for version, state in states.items():
        record = PolicyVersion(
            model=settings.model,
            version=version,
            parent=lineage.parents[version],
            run_id=settings.run_id,
            checkpoint=lineage.checkpoints[version],
            state=state,
            reason=reason,
            changed_at_ms=now_ms,
        )
        publications += make_announcements(record, settings.run_id)
    return publications


def unknown_version(lineage: Lineage, model: str, version: int) -> ConfigurationError:
    """Return the error for a version that is not in the history of the model."""
    ancestors = ", ".join(map(str, lineage.lags(lineage.head))) if lineage.head is not None else "none"
    return ConfigurationError(
        f"version {version} of {model} is not the head or an ancestor of it; those are: {ancestors}"
    )
