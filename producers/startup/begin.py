"""Record this process as the plan says, until it ends."""

import atexit
import os
from contextlib import suppress
from pathlib import Path

from rollbus.producers.integrations.instrument import instrument
from rollbus.producers.startup.plan import Ended, read_plan, write_ended


def begin(folder: Path) -> None:
    """Begin; raises what may be wrong with the plan or its folder."""
    plan, process = read_plan(folder), os.getpid()
    recorder = plan.make_recorder()
    patches = instrument(recorder, task=plan.task if plan.headers is None else None)
    part = None if plan.headers is None else recorder.episodes.attach(plan.headers)
    recorder.episodes.of_process = part

    def end() -> None:
        if os.getpid() == process:  # a fork that ends here reports with its parent
            recorder.close()
            with suppress(OSError):  # the command has ended before
                writers = () if part is None else part.writer_ids
                write_ended(folder, Ended(counters=recorder.counters, writer_ids=writers, failed=patches.failed))

    atexit.register(end)
