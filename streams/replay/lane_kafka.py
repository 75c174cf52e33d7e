"""A lane in a process of its own: a job on stdin, what its partitions come to on stdout.

It ends when its starter does, however that ended: the end of stdin says so. It writes to no topic.
"""

import asyncio
import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO

from rollbus.schemas.errors import RollbusError
from rollbus.schemas.replays import ReplayRange
from rollbus.schemas.trajectories import Trajectory
from rollbus.streams.output_kafka import partition_of
from rollbus.streams.process import prepare_process
from rollbus.streams.replay.digest import NOWHERE
from rollbus.streams.replay.lane import Answers, Lane
from rollbus.streams.replay.output import CountingOutput
from rollbus.streams.replay.plan import ReplayPlan
from rollbus.streams.replay.range_kafka import reader
from rollbus.streams.replay.recorded_kafka import read_rewards
from rollbus.streams.replay.source_kafka import KafkaSource, assign
from rollbus.streams.replay.stages import first_stages
from rollbus.streams.rewards.registry import Registry
from rollbus.streams.scoring import ScoringStage
from rollbus.streams.settings import StreamSettings
from rollbus.streams.stage import Incoming

LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Job:
    """What one lane is to do."""

    settings: StreamSettings
    plan: ReplayPlan
    ranges: tuple[ReplayRange, ...]
    """Of its own partitions."""
    excluded: frozenset[str]
    heads: bool
    """Whether scoring follows, and is given headers."""
    registry: Registry | None
    """The reward functions, where the lane is to ask them."""
    app_version: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a lane that cannot go on."""

    error: str
    """The name of the error's class in `schemas.errors`."""
    text: str


async def work(job: Job, pipe: BinaryIO) -> None:
    """Read the partitions to the ends of their ranges and write what was made of them."""
    seen = [0, 0, 0]

    def count(*more: int) -> None:
        for place, number in enumerate(more):
            seen[place] += number

    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(reader(job.settings))
        places = assign(consumer, job.settings.namespace, job.ranges)
        sources = [KafkaSource(consumer, place, span, count) for span, place in places.items()]
        lane = await _lane(job)
        writing: asyncio.Future[None] | None = None
        async for message in lane.run(sources):
            data = pickle.dumps((tuple(seen), message), protocol=pickle.HIGHEST_PROTOCOL)
            seen[:] = [0, 0, 0]
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(asyncio.to_thread(_write, pipe, data))
        if writing is not None:
            await writing


async def _lane(job: Job) -> Lane:
    early = {}
    if job.plan.rewards == "end":
        early = await read_rewards(job.settings, job.ranges)
    return Lane(
        first_stages(job.plan),
        partitions=job.settings.event_partitions,
        output=CountingOutput(),
        partition_of=partition_of,
        source_namespace=job.settings.namespace,
        namespace=job.plan.namespace,
        change=job.plan.change,
        excluded=job.excluded,
        early=early,
        app_version=job.app_version,
        heads=job.heads,
        ask_all=None if job.registry is None else asking(job.plan, job.registry),
    )


def asking(plan: ReplayPlan, registry: Registry) -> Any:
    """Return what asks the plan's reward functions about trajectories."""
    stage = ScoringStage(plan.scoring_config, keep_ms=0, registry=registry)

    async def ask_all(trajectories: Sequence[Trajectory]) -> Sequence[Answers]:
        questions = [Incoming(each, each.group_hint, NOWHERE, b"") for each in trajectories]
        return [dict(said) for said in await stage.answer(stage.new_state(), questions)]

    return ask_all


def _write(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def main() -> None:
    """Do the job that stands on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starter is told too, and ends this
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a reward function prints is no message
    try:
        job: Job = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_starter, daemon=True).start()
        prepare_process()
        asyncio.run(work(job, pipe))
    except RollbusError as error:
        _write(pipe, pickle.dumps(((0, 0, 0), Failed(type(error).__name__, str(error)))))


def _end_with_starter() -> None:
    os.read(0, 1)
    os._exit(1)
