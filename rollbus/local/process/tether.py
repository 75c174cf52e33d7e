"""Run a command that ends when its starter dies, even by kill -9: `python tether.py PARENT COMMAND…` becomes COMMAND.

The kernel sends SIGTERM when the thread that started this process ends, so start it from the main thread. It is run as
a file and imports nothing of rollbus, to cost milliseconds; `tethered()` is its command line.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def tethered() -> list[str]:
    """The beginning of a command line that ties the rest of it to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid())]


def main(arguments: list[str]) -> None:
    """Ask for the signal, look whether the starter is still there, become the command."""
    starter, command = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != starter:
        sys.exit("the starter has ended already")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot start {command[0]!r}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
