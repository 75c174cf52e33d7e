"""Lanes in processes of their own, as the process that puts their work in order sees them: started, read, ended."""

import asyncio
import fcntl
import pickle
import signal
import sys
from contextlib import suppress
from typing import Any

from rollbus.schemas import errors
from rollbus.schemas.errors import RollbusError, UnavailableError
from rollbus.streams.replay import lane_kafka
from rollbus.streams.replay.lane import Message
from rollbus.streams.replay.lane_kafka import LENGTH, Failed, Job
from rollbus.streams.replay.source_kafka import Progress

AHEAD_BYTES = 8 * 1024 * 1024
"""How far a lane may be ahead of its turn: half of what is read from it before it has to wait."""
PIPE_BYTES = 1024 * 1024
"""Linux' most for a pipe; with its default of 64 kB a lane would wait for each turn of our loop."""
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)


class LaneProcess:
    """One lane; reads as `Messages`."""

    def __init__(self, job: Job, progress: Progress) -> None:
        self.partitions = [one.partition for one in job.ranges]
        self._job, self._progress = job, progress
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process and give it its job."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"from {lane_kafka.__name__} import main; main()"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=AHEAD_BYTES,
        )
        assert process.stdin is not None
        _widen(process.stdout)
        process.stdin.write(pickle.dumps(self._job))
        with suppress(ConnectionError):  # what it died of is told by the first read
            await process.stdin.drain()

    async def read(self) -> Message:
        """Return what was made next; raises what the lane has met, UnavailableError where it has ended otherwise."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            seen, message = pickle.loads(await process.stdout.readexactly(size))
        except asyncio.IncompleteReadError:
            raise UnavailableError(self._ended(await process.wait())) from None
        if isinstance(message, Failed):
            kind: type[RollbusError] = getattr(errors, message.error, UnavailableError)
            raise kind(message.text)
        self._progress(*seen)
        found: Message = message
        return found

    async def stop(self) -> None:
        """End it, wherever it is."""
        process = self._process
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _ended(self, status: int) -> str:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        partitions = ", ".join(map(str, self.partitions))
        return (
            f"the process of the partitions {partitions} {how}; what it said stands above. Give the same command "
            "again to go on, with --processes 1 if memory is short"
        )


def _widen(pipe: Any) -> None:
    transport = getattr(pipe, "_transport", None)
    raw = transport.get_extra_info("pipe") if transport is not None else None
    if raw is not None and _F_SETPIPE_SZ is not None:
        with suppress(OSError):  # it is only slower
            fcntl.fcntl(raw.fileno(), _F_SETPIPE_SZ, PIPE_BYTES)
