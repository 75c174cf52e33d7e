"""A lane in a process of its own: a job on stdin, what its partitions come to on stdout.

It ends when its starter does, however that ended: the end of stdin says so. It writes to no topic.
"""

import asyncio
import logging
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.records.replays import ReplayRange
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.exactly_once import processing
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.decide.digest import NOWHERE
from rollbus.streams.replay.decide.lane import Answers, AskAll, Lane, Message
from rollbus.streams.replay.decide.output import CountingOutput
from rollbus.streams.replay.kafka.live_topics import read_rewards
from rollbus.streams.replay.kafka.source import open_ranges
from rollbus.streams.replay.plan.plan import ReplayPlan
from rollbus.streams.replay.plan.stages import first_stages
from rollbus.streams.rewards.registry import Registry
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import Incoming
from rollbus.streams.worker.process import prepare_process

LENGTH = struct.Struct(">I")
FRAME_BYTES = 1024 * 1024
"""Of what was made, written at once: to write, to read and to wait for a turn of a loop cost the same for any size."""
FRAME_S = 0.5
"""How long at most what was made waits for more, where reward functions take their time."""


@dataclass(frozen=True, slots=True)
class LaneJob:
    """What one lane is to do."""

    settings: StreamSettings
    plan: ReplayPlan
    ranges: tuple[ReplayRange, ...]
    """Of its own partitions."""
    excluded: frozenset[str]
    with_headers: bool
    """Whether scoring follows, and is given headers."""
    registry: Registry | None
    """The reward functions, where the lane is to ask them."""
    app_version: str


@dataclass(frozen=True, slots=True)
class LaneFailure:
    """The last message of a lane that cannot go on."""

    error: str
    """The name of the error's class in `schemas.errors`."""
    text: str


async def work(job: LaneJob, pipe: BinaryIO) -> None:
    """Read the partitions to the ends of their ranges and write what was made of them."""
    frames = _Frames(pipe)
    async with open_ranges(job.settings, job.ranges, frames.count) as sources:
        lane = await _lane(job)
        await frames.begin()
        ask_all = None if job.registry is None else asking(job.plan, job.registry)
        async for message in lane.run(sources, with_headers=job.with_headers, ask_all=ask_all):
            await frames.add(message)
        await frames.end()


class _Frames:
    """Messages on their way into the pipe, many at once; the next ones are made while some are written."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._messages: list[Message] = []
        self._counts, self._bytes, self._began_s = [0, 0, 0], 0, time.monotonic()
        self._writing: asyncio.Future[None] | None = None

    def count(self, *more: int) -> None:
        """Take note of what was read: offsets, records, bytes."""
        self._counts = [have + new for have, new in zip(self._counts, more, strict=True)]

    async def begin(self) -> None:
        """Say that reading begins."""
        await self._send()

    async def add(self, message: Message) -> None:
        """Take a message, and write what waits if it is much or has waited long."""
        self._messages.append(message)
        self._bytes += message.size()
        if self._bytes >= FRAME_BYTES or time.monotonic() - self._began_s >= FRAME_S:
            await self._send()

    async def end(self) -> None:
        """Write what waits, and return once all is written."""
        await self._send()
        assert self._writing is not None
        await self._writing

    async def _send(self) -> None:
        if self._writing is not None:
            await self._writing
        data = pickle.dumps((self._counts, self._messages), protocol=pickle.HIGHEST_PROTOCOL)
        self._messages, self._counts, self._bytes, self._began_s = [], [0, 0, 0], 0, time.monotonic()
        self._writing = asyncio.ensure_future(asyncio.to_thread(_write, self._pipe, data))


async def _lane(job: LaneJob) -> Lane:
    early = {}
    if job.plan.feedback == "end":
        early = await read_rewards(job.settings, job.ranges)
    return Lane(
        first_stages(job.plan),
        partitions=job.settings.event_partitions,
        output=CountingOutput(),
        partition_of=partition_of,
        source_namespace=job.settings.namespace,
        namespace=job.plan.namespace_in(job.settings.namespace),
        change=job.plan.change,
        excluded=job.excluded,
        early=early,
        app_version=job.app_version,
        signer_of=job.settings.signer_of(job.plan.input),
    )


def asking(plan: ReplayPlan, registry: Registry) -> AskAll:
    """Return what asks the plan's reward functions about trajectories."""
    stage = ScoringStage(plan.scoring_config, keep_ms=0, registry=registry, retry_s=0)  # it asks no model

    async def ask_all(trajectories: Sequence[Trajectory]) -> Sequence[Answers]:
        questions = [Incoming(trajectory, trajectory.group_hint, NOWHERE, b"") for trajectory in trajectories]
        return [dict(answer) for answer in await stage.answer(stage.new_state(), questions)]

    return ask_all


def _write(pipe: BinaryIO, data: bytes) -> None:
    pipe.write(LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def main() -> None:
    """Do the job that comes on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starter gets it too, and ends this
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a reward function prints is not a message
    try:
        job: LaneJob = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_starter, daemon=True).start()
        prepare_process()
        logging.getLogger(processing.__name__).setLevel(logging.ERROR)  # the starter counts the dead letters
        asyncio.run(work(job, pipe))
        os._exit(0)  # all is written: to free its states row by row would take a tenth of its time
    except RollbusError as error:
        _write(pipe, pickle.dumps(((0, 0, 0), [LaneFailure(type(error).__name__, str(error))])))


def _end_with_starter() -> None:
    os.read(0, 1)
    os._exit(1)
