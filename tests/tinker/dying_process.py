"""`rollbus`, or a trainer of the tests, that dies once just after an optimizer step, which nothing has recorded yet.

    python -m tests.tinker.dying_process MARK rollbus ARGUMENTS…        the command line
    python -m tests.tinker.dying_process MARK trainer SETTINGS_JSON     a trainer

It dies if the file MARK is there, and removes it first.
"""

import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from rollbus.trainer.backends.tinker import sdk
from rollbus.trainer.backends.tinker.service import AdamSettings

PROGRAMS = {"rollbus": "rollbus", "trainer": "tests.services.trainer.process"}


def die_once(mark: Path) -> None:
    """Kill this process if the mark is there."""
    if mark.exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def main(mark: Path, program: str, *arguments: str) -> None:
    step = sdk.SdkRun.optim_step

    async def dying(run: sdk.SdkRun, optimizer: AdamSettings) -> Mapping[str, float]:
        metrics = await step(run, optimizer)
        die_once(mark)
        return metrics

    setattr(sdk.SdkRun, "optim_step", dying)  # noqa: B010 - a method
    sys.argv = [program, *arguments]
    runpy.run_module(PROGRAMS[program], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
