"""One finetuning run on the bus: publish, end an epoch, wait for what the stages make of it.

A repeated request happens once: ids are made of run, epoch, example and generation. So a resumed run repeats its
requests, finds the first ones done, and continues after them.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from rollbus.nemo.bus.protocol import Bus
from rollbus.nemo.bus.run_view import RunView, command_id_of
from rollbus.nemo.runs.run_recording import RunRecording
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.topics import RUN_LOG
from rollbus.trainer.ledger.log import Publication

STALLED_S = 300.0
"""Nothing of the run on the log for so long, while something is waited for and no step is open: a stage is down.

It counts by the stages' own time: a worker that is behind with other traffic is waited for, one without ticks is not.
"""


class RunLog:
    """The run's records, written and read."""

    def __init__(
        self,
        bus: Bus,
        run_id: str,
        recording: RunRecording,
        *,
        check: Callable[[], None] = lambda: None,
        stalled_s: float = STALLED_S,
    ) -> None:
        """`check` raises if a process that the run needs has ended; asked, with further `checks`, while waiting."""
        self.bus, self.run_id, self.recording = bus, run_id, recording
        self.view = RunView(run_id)
        self.checks, self._stalled_s = [check], stalled_s
        self._reading = asyncio.Lock()

    async def refresh(self) -> bool:
        """Read on; False where nothing of this run came."""
        async with self._reading:
            return self.view.take_records(await self.bus.poll())

    async def begin(self, *, resume: bool) -> None:
        """Read everything that is there; raises ConfigurationError where a new run has the name of another."""
        async with self._reading:
            self.view.take_records(await self.bus.catch_up())
            self.view.failures.clear()  # after a restart the trainer tries again what failed for good before
        if self.view.commands and not resume:
            raise ConfigurationError(
                f"run {self.run_id!r} is on this broker already, with {len(self.view.commands)} epochs; name another "
                "under `rollbus: run_id`, or continue it with --resume in its folder"
            )

    async def wait_for(self, condition: Callable[[RunView], bool], what: str) -> None:
        """Read on until a condition holds; raises UnavailableError if nothing new of this run arrives in the log."""
        view, stalled_s = self.view, self._stalled_s
        moved_at_s = ticked_at_s = time.monotonic()
        moved_at_ms = ticked_at_ms = view.stream_time_ms
        while not condition(view):
            has_moved = await self.refresh()
            for check in self.checks:
                check()
            now_s, now_ms = time.monotonic(), view.stream_time_ms
            if has_moved or view.open_steps or view.is_paused:  # a step of a large model takes as long as it takes
                moved_at_s, moved_at_ms = now_s, now_ms
            if now_ms > ticked_at_ms:
                ticked_at_s, ticked_at_ms = now_s, now_ms
                moved_at_ms = moved_at_ms or now_ms  # of the first tick
            are_stages_behind = now_s - ticked_at_s < stalled_s and now_ms - moved_at_ms < stalled_s * 1000
            if now_s - moved_at_s > stalled_s and not are_stages_behind:
                raise UnavailableError(
                    f"run {self.run_id}: waited {stalled_s:.0f} s for {what} and nothing of this run is new on "
                    "the log; see that its worker and trainer live and keep up, and their logs"
                )

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Write records."""
        if publications:
            await self.bus.publish(publications)

    async def end_epoch(self, epoch: int) -> None:
        """Close the curriculum's window of an epoch and wait for its decision."""
        command_id = command_id_of(self.run_id, epoch)
        if command_id not in self.view.commands:
            command = RunCommand(
                run_id=self.run_id, command="end_window", command_id=command_id, comment=f"end of epoch {epoch}"
            )
            await self.publish([Publication(RUN_LOG, self.run_id, command)])
        await self.wait_for(lambda view: epoch in view.windows, f"the curriculum's decision on epoch {epoch}")

    async def close(self) -> None:
        """Deliver what was recorded and let go."""
        await self.recording.close()
        await self.bus.close()
