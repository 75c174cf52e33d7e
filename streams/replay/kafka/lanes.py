"""Lanes in processes of their own, as the process that puts their work in order sees them: started, read, ended.

What a lane has made is read ahead of its turn by a thread, whole frames at once and a few at most.
"""

import asyncio
import fcntl
import pickle
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

from rollbus.runtime.machine import name_signal
from rollbus.schemas import errors
from rollbus.schemas.errors import RollbusError, UnavailableError
from rollbus.streams.replay.decide.lane import Message
from rollbus.streams.replay.kafka import lane as lane_kafka
from rollbus.streams.replay.kafka.lane import LENGTH, LaneFailure, LaneJob
from rollbus.streams.replay.kafka.source import Progress

AHEAD_FRAMES = 4
"""How far a lane may be ahead of its turn before it has to wait: frames of a megabyte."""
PIPE_BYTES = 1024 * 1024
"""Linux' most for a pipe; with its default of 64 kB a lane would wait for its reader many times a frame."""
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)


class LaneProcess:
    """One lane; reads as `Messages`."""

    def __init__(self, job: LaneJob, progress: Progress) -> None:
        self.partitions = [span.partition for span in job.ranges]
        self._job, self._progress = job, progress
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lane")
        self._ahead: deque[asyncio.Future[bytes | None]] = deque()
        self._messages: deque[Any] = deque()
        """Of the frame that is read."""

    async def start(self) -> None:
        """Start the process and give it its job."""
        await self._in_thread(self._start)
        while len(self._ahead) < AHEAD_FRAMES:
            self._ahead.append(self._in_thread(self._frame))

    async def ready(self) -> None:
        """Wait until it is about to read, which its first, empty frame says; or until it has ended."""
        await asyncio.wait([self._ahead[0]])

    async def read(self) -> Message:
        """Return what was made next; raises the error of the lane, UnavailableError where the process just ended."""
        while not self._messages:
            frame = await self._ahead.popleft()
            if frame is None:
                raise UnavailableError(self._describe_end(await self._in_thread(self._wait)))
            self._ahead.append(self._in_thread(self._frame))
            counts, messages = pickle.loads(frame)
            self._messages.extend(messages)
            self._progress(*counts)
        message = self._messages.popleft()
        if isinstance(message, LaneFailure):
            kind: type[RollbusError] = getattr(errors, message.error, UnavailableError)
            raise kind(message.text)
        typed_message: Message = message
        return typed_message

    async def stop(self) -> None:
        """End it, wherever it is."""
        if self._process is None:
            await self._in_thread(lambda: None)  # after a start that was not awaited to its end
        process = self._process
        if process is not None:
            process.kill()
            await self._in_thread(self._wait)  # behind the reads, which have come to the pipe's end
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what it was not given any more
                    _there(pipe).close()
        self._thread.shutdown()

    def _in_thread(self, call: Any) -> Any:
        return asyncio.get_running_loop().run_in_executor(self._thread, call)

    # In the thread

    def _start(self) -> None:
        self._process = process = subprocess.Popen(
            [sys.executable, "-c", f"from {lane_kafka.__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        _widen(_there(process.stdout))
        with suppress(OSError):  # the first read reports why it ended
            _there(process.stdin).write(pickle.dumps(self._job))
            _there(process.stdin).flush()

    def _frame(self) -> bytes | None:
        """Return the next frame; None at the end."""
        assert self._process is not None
        pipe = _there(self._process.stdout)
        length = pipe.read(LENGTH.size)
        if len(length) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack(length)
        frame = pipe.read(size)
        return frame if len(frame) == size else None

    def _wait(self) -> int:
        assert self._process is not None
        return self._process.wait()

    def _describe_end(self, status: int) -> str:
        how = f"was ended by {name_signal(-status)}" if status < 0 else f"ended with status {status}"
        partitions = ", ".join(map(str, self.partitions))
        return (
            f"the process of the partitions {partitions} {how}; its output is above. Give the same command "
            "again to go on, with --processes 1 if memory is short"
        )


def _there(pipe: Any) -> BinaryIO:
    assert pipe is not None
    stream: BinaryIO = pipe
    return stream


def _widen(pipe: BinaryIO) -> None:
    if _F_SETPIPE_SZ is not None:
        with suppress(OSError):  # it is only slower
            fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, PIPE_BYTES)
