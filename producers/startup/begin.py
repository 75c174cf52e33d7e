"""Record this process as the plan says, and the processes that it forks, each until it ends."""

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollbus.producers.delivery import process_hooks
from rollbus.producers.integrations.instrument import Instrumentation, instrument
from rollbus.producers.recorder import Recorder
from rollbus.producers.startup.plan import Ended, read_plan, write_ended
from rollbus.schemas.records.events import TurnRecorded


def begin(folder: Path) -> None:
    """Begin; raises what may be wrong with the plan or its folder."""
    plan = read_plan(folder)
    recorder = plan.make_recorder()
    patches = instrument(recorder, task=plan.task if plan.headers is None else None)
    recorder.episodes.of_process = None if plan.headers is None else recorder.episodes.attach(plan.headers)
    reporter = _Reporter(folder, recorder, patches)
    atexit.register(reporter.report)
    os.register_at_fork(after_in_child=reporter.follow)


class _Reporter:
    """Reports to the command when this process ends; its copy in a child reports of the child."""

    def __init__(self, folder: Path, recorder: Recorder, patches: Instrumentation) -> None:
        self._folder, self._recorder, self._patches = folder, recorder, patches
        self._begun = 0
        """The process that has left its first report."""
        recorder.outbox.on_turn = self._report_first

    def report(self) -> None:
        """Close the recorder and leave the report."""
        process_hooks.close_all()
        self._write(counters=self._recorder.counters, failed=self._patches.failed)

    def _report_first(self, turn: TurnRecorded, hook: str) -> None:
        """Name the process's writer, for the case that it is killed."""
        if self._begun != os.getpid():
            self._begun = os.getpid()
            self._write(whole=False)

    def _write(self, **fields: Any) -> None:
        part = self._recorder.episodes.of_process
        with suppress(OSError):  # the command has ended before
            write_ended(self._folder, Ended(writer_ids=() if part is None else part.writer_ids, **fields))

    def follow(self) -> None:
        """Report in a child of `multiprocessing` too, which never comes to the interpreter's exit."""
        if (multiprocessing := sys.modules.get("multiprocessing.util")) is not None:
            multiprocessing.register_after_fork(self, _Reporter._report_last)

    def _report_last(self) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, self.report, exitpriority=-2)
