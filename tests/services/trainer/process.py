"""A trainer process for the tests: `python -m tests.services.trainer.process SETTINGS_JSON [DIE_AT]`.

DIE_AT names the record whose publication the process does not survive, or several that are published together
(`StepCompleted+StepStarted`). It kills itself as `kill -9` would: before the transaction (`before StepCompleted`), in
it with the last records not yet sent (`between …`) or with everything sent and nothing committed (`inside …`), or
after it. `while the backend works` is just after a batch was submitted.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer

from rollbus.trainer.ledger.log import LastRecords, Publication, ReceivedBatch
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from rollbus.trainer.process import run_trainer
from rollbus.trainer.settings import TrainerSettings

WHILE_THE_BACKEND_WORKS = "while the backend works"


class DyingLog(KafkaTrainerLog):
    """A Kafka log at which the process dies."""

    die_at = ""

    async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
        if self.die_at == WHILE_THE_BACKEND_WORKS and not skip_unreadable:  # the look ahead
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().next_batch(timeout_s, skip_unreadable=skip_unreadable)

    async def publish(
        self, publications: Sequence[Publication], *, last: LastRecords | None = None, next_offset: int | None = None
    ) -> Sequence[Publication]:
        self._die("before", publications)
        written = await super().publish(publications, last=last, next_offset=next_offset)
        self._die("after", written)
        return written

    async def _send_all(
        self, producer: AIOKafkaProducer, publications: Sequence[Publication], last: LastRecords | None
    ) -> Sequence[Publication]:
        async def between() -> Sequence[Publication]:
            more = () if last is None else await last()
            self._die("between", (*publications, *more))
            return more

        written = await super()._send_all(producer, publications, between)
        self._die("inside", written)
        return written

    def _die(self, side: str, publications: Sequence[Publication]) -> None:
        at, _, records = self.die_at.partition(" ")
        if at == side and {type(publication.record).__name__ for publication in publications} >= set(
            records.split("+")
        ):
            os.kill(os.getpid(), signal.SIGKILL)


def main(settings_json: str, die_at: str = "") -> None:
    logging.basicConfig(level=logging.INFO)
    settings = TrainerSettings.model_validate_json(settings_json)
    log = DyingLog(settings.kafka, namespace=settings.namespace, run_id=settings.run_id, model=settings.model)
    log.die_at = die_at
    run_trainer(settings, log=log)


if __name__ == "__main__":
    main(*sys.argv[1:])
