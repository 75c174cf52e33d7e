"""A run's log and a backend → both agreed on where training stands, before its next step.

First fence the trainer before, then read: nothing of its can be written after what was read.
"""

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.steps import PolicyVersion
from rollbus.schemas.topics import POLICY_VERSIONS, RUN_LOG
from rollbus.trainer.backends.protocol import Capabilities, Versions
from rollbus.trainer.ledger import Ledger
from rollbus.trainer.log import Publication
from rollbus.trainer.reading_ahead import ReadingAhead
from rollbus.trainer.step_context import LoopSettings, StepContext, heads_differ


async def folded(log: ReadingAhead, settings: LoopSettings) -> Ledger:
    """Return the ledger as the log has it now."""
    ledger = Ledger(settings.run_id, settings.model)
    for record in await log.read_ledger():
        ledger.apply(record)
    return ledger


def check_model(capabilities: Capabilities, settings: LoopSettings) -> None:
    """ConfigurationError where the backend holds another model than the run trains."""
    if capabilities.model != settings.model:
        raise ConfigurationError(
            f"run {settings.run_id!r} trains model {settings.model!r}, but the {capabilities.backend} "
            f"backend holds {capabilities.model!r}; set the trainer's model, or point it at another server"
        )


async def agree(context: StepContext, versions: Versions) -> None:
    """Raise DataLossError where log and backend stand at different versions; let the backend serve what the log says.

    With a step open, the backend may have gone on without us: the step itself finds out.
    """
    ledger = context.ledger
    if ledger.open_step is not None:
        return
    if ledger.lineage.head != versions.head:
        raise heads_differ(ledger, versions.head)
    serving = ledger.lineage.serving
    if serving is not None and serving != versions.serving:
        await context.backend.promote(serving)


async def announce(context: StepContext, versions: Versions) -> None:
    """Before a run's first step: say which versions there are, the head last, to those who do not know."""
    if context.ledger.closed_steps or context.ledger.open_step is not None:
        return
    settings = context.settings
    known = sorted(versions.known, key=lambda each: (each.version == versions.head, each.version))
    publications: list[Publication] = []
    for each in known:
        record = PolicyVersion(
            model=settings.model,
            version=each.version,
            parent=each.parent,
            batch_hash=each.batch_hash,
            checkpoint=each.checkpoint,
            state="serving" if each.version == versions.serving else "candidate",
            reason="found in the backend before the first step",
            changed_at_ms=context.clock_ms(),
        )
        if each.version not in context.ledger.lineage.parents:
            publications.append(Publication(POLICY_VERSIONS, settings.model, record))
        if each.version == versions.head:
            publications.append(Publication(RUN_LOG, settings.run_id, record))
    await context.publish(tuple(publications))
