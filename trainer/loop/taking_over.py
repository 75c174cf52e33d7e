"""A run's log and a backend → both agree on the head, before the next step.

First fence the trainer before, then read: it can write nothing after that.
"""

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.trainer.backends.protocol import Capabilities, Versions
from rollbus.trainer.ledger.ledger import Ledger
from rollbus.trainer.ledger.log import Publication, TrainerLog, make_announcements
from rollbus.trainer.loop.context import StepContext, heads_differ
from rollbus.trainer.settings import TrainerSettings


async def read_ledger(log: TrainerLog, settings: TrainerSettings) -> Ledger:
    """Return the ledger as the log has it now."""
    return Ledger.fold(settings.run_id, settings.model, await log.read_ledger())


def check_model(capabilities: Capabilities, settings: TrainerSettings) -> None:
    """Raise ConfigurationError if the backend holds another model than the run trains."""
    if capabilities.model != settings.model:
        raise ConfigurationError(
            f"run {settings.run_id!r} trains model {settings.model!r}, but the {capabilities.backend} "
            f"backend holds {capabilities.model!r}; set the trainer's model, or point it at another server"
        )
    if settings.train.distill is not None and not capabilities.distills:
        raise ConfigurationError(
            f"the {capabilities.backend} backend of {capabilities.model!r} gives no log-probs of a prompt with a hint, "
            "which `trainer: train: distill:` needs; take it out, or train with art-server's own model service "
            "(without `art_server: art:`)"
        )


async def agree_on_head(context: StepContext, versions: Versions) -> None:
    """Raise DataLossError if log and backend have different heads; let the backend serve what the log says.

    With a step open, the backend may have gone on alone: the step itself finds out.
    """
    ledger = context.ledger
    if ledger.open_step is not None:
        return
    if ledger.lineage.head != versions.head:
        raise heads_differ(ledger, versions.head)
    serving = ledger.lineage.serving
    if serving is not None and serving != versions.serving:
        await context.backend.promote(serving)


async def announce_versions(context: StepContext, versions: Versions) -> None:
    """Before a run's first step, publish the versions of the backend that the log lacks, the head last."""
    if context.ledger.closed_steps or context.ledger.open_step is not None:
        return
    settings = context.settings
    known_versions = sorted(versions.known, key=lambda version: (version.version == versions.head, version.version))
    publications: list[Publication] = []
    for version in known_versions:
        record = PolicyVersion(
            model=settings.model,
            version=version.version,
            parent=version.parent,
            batch_hash=version.batch_hash,
            checkpoint=version.checkpoint,
            state="serving" if version.version == versions.serving else "candidate",
            reason="found in the backend before the first step",
            changed_at_ms=context.clock_ms(),
        )
        to_model, to_run, to_delivery = make_announcements(record, settings.run_id)
        if version.version not in context.ledger.lineage.parents:
            publications.append(to_model)
        if version.version == versions.head:
            publications.append(to_run)
        publications.append(to_delivery)
    await context.publish(tuple(publications))
