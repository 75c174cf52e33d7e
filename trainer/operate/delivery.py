"""What an operator says of a version in progressive delivery, and what was decided so far.

A command names the decision that the operator knew, so that of two who decide at once the second is refused.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence

from rollbus.runtime.kafka.decisions import read_decisions
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.delivery import DeliveryCommand, DeliveryCommandName, PolicyDecision
from rollbus.schemas.topics import DELIVERY_LOG
from rollbus.trainer.ledger.log import Publication
from rollbus.trainer.operate.publishing import publish_all
from rollbus.trainer.settings import TrainerSettings

ANSWER_S, LOOK_S = 30.0, 0.5
"""How long a command waits for its decision, and between two looks: a worker decides at once."""


def policy_history(settings: TrainerSettings) -> Sequence[PolicyDecision]:
    """Return every decision on who serves the settings' model."""
    return asyncio.run(read_decisions(settings.kafka, settings.namespace, settings.model))


def command_delivery(
    settings: TrainerSettings, command: DeliveryCommandName, version: int | None, *, reason: str
) -> PolicyDecision:
    """Write a command and return the decision that follows; raises ConfigurationError if it is refused."""
    decision = asyncio.run(_command(settings, command, version, reason))
    if decision.action == "refuse":
        raise ConfigurationError(
            f"the command was refused: {decision.reason.replace('_', ' ')}; `rollbus policy history` shows what was "
            "decided, and the command can be given again"
        )
    return decision


async def _command(
    settings: TrainerSettings, command: DeliveryCommandName, version: int | None, reason: str
) -> PolicyDecision:
    decisions = await read_decisions(settings.kafka, settings.namespace, settings.model)
    record = DeliveryCommand(
        run_id=settings.run_id,
        command=command,
        version=version,
        command_id=uuid.uuid4().hex,
        seen_decision=decisions[-1].number if decisions else 0,
        reason=reason,
    )
    await publish_all(settings.kafka, settings.namespace, [Publication(DELIVERY_LOG, settings.run_id, record)])
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        await asyncio.sleep(LOOK_S)
        for decision in await read_decisions(settings.kafka, settings.namespace, settings.model):
            if decision.number > record.seen_decision and record.command_id == decision.command_id:
                return decision
    raise ConfigurationError(
        f"the command is in the log, but nothing was decided in {ANSWER_S:.0f} s; is a worker with the stage "
        f"delivery.{settings.run_id} running?"
    )
