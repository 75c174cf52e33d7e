"""Record this process as the plan says, and the processes that it forks, each until it ends."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rollbus.producers.integrations.instrument import Instrumentation, instrument
from rollbus.producers.recorder import Recorder
from rollbus.producers.sending import process_hooks
from rollbus.producers.startup.plan import ProcessReport, read_plan, write_ended
from rollbus.schemas.records.events import TurnRecorded


def begin(folder: Path) -> None:
    """Begin; raises what may be wrong with the plan or its folder."""
    plan = read_plan(folder)
    recorder = plan.make_recorder()
    patches = instrument(recorder, task=plan.task if plan.headers is None else None)
    recorder.episodes.of_process = None if plan.headers is None else recorder.episodes.attach(plan.headers)
    recorder.episodes.gives_way = True
    process_hooks.unregister(recorder)
    process_hooks.register(_Reporting(folder, recorder, patches))


class _Reporting:
    """The recorder at the end of the process and of each fork of it, where it also reports to the command."""

    def __init__(self, folder: Path, recorder: Recorder, patches: Instrumentation) -> None:
        self._folder, self._recorder, self._patches = folder, recorder, patches
        self._begun, self._is_ending, self._waited_s = 0, False, 0.0
        recorder.outbox.on_turn = self._report_first

    def after_fork(self) -> None:
        self._recorder.after_fork()

    def leave(self) -> None:
        self._recorder.leave()
        self._is_ending = True  # a child of `multiprocessing`, in which a flush is the last that is asked for

    def flush(self, timeout: float) -> bool:
        flushed = self._wait(self._recorder.flush, timeout)
        self._report(whole=self._is_ending)
        return flushed

    def close(self, timeout: float) -> bool:
        was_closed = self._wait(self._recorder.close, timeout)
        self._report(whole=True)
        return was_closed

    def _wait(self, send: Callable[[float], bool], timeout: float) -> bool:
        """Send what is left, and add how long that took to what is reported."""
        began = time.monotonic()
        is_sent = send(timeout)
        self._waited_s += time.monotonic() - began
        return is_sent

    def _report_first(self, turn: TurnRecorded, hook: str) -> None:
        """Name the process's writer, for the case that it is killed."""
        if self._begun != os.getpid():
            self._begun = os.getpid()
            self._report(whole=False)

    def _report(self, *, whole: bool) -> None:
        part, counters = self._recorder.episodes.of_process, self._recorder.counters
        writers = () if part is None else part.writer_ids
        report = ProcessReport(
            whole=whole,
            counters=counters,
            writer_ids=writers,
            failed=self._patches.failed,
            waited_s=self._waited_s,
        )
        with suppress(OSError):  # the command has ended before
            write_ended(self._folder, report)
