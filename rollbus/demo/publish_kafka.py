"""An evaluation → its record on the `evaluations` topic, so that it lands in ClickHouse with everything else."""

import time
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer

from rollbus.demo.evaluation import Evaluation
from rollbus.demo.game import Result
from rollbus.schemas import codec, steps
from rollbus.schemas.topics import EVALUATIONS


async def publish(
    bootstrap_servers: str, namespace: str, run: str, seed: int, evaluations: Iterable[Evaluation]
) -> None:
    """Write the records and wait until they are safe."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        for evaluation in evaluations:
            record = as_record(evaluation, run=run, seed=seed, now_ms=time.time_ns() // 1_000_000)
            await producer.send_and_wait(EVALUATIONS.full_name(namespace), codec.encode(record), key=run.encode())
    finally:
        await producer.stop()


def as_record(evaluation: Evaluation, *, run: str, seed: int, now_ms: int) -> steps.Evaluation:
    """The same evaluation has the same id whenever it is published."""
    metrics: dict[str, float] = {}
    for result in Result:
        rate = evaluation.tally.rate(result)
        metrics |= {result.value: rate.value, f"{result.value}_low": rate.low, f"{result.value}_high": rate.high}
    return steps.Evaluation(
        evaluation_id=f"{run}-{evaluation.model}@{evaluation.version}-{seed}",
        model=evaluation.model,
        policy_version=evaluation.version,
        run_id=run,
        name="tictactoe-held-out",
        episodes=evaluation.tally.games,
        metrics=metrics,
        seed=seed,
        evaluated_at_ms=now_ms,
    )
