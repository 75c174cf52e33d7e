"""What the kernel of this machine says of a process that beats: whether it is stopped by a signal, or gone."""

import socket
from pathlib import Path

from rollbus.runtime.health.alarms.processes import ProcessHealth
from rollbus.schemas.records.health import Heartbeat

PROCESSES = Path("/proc")


def is_frozen(beat: Heartbeat) -> bool | None:
    """Say whether a process of this machine is stopped by a signal; None if it is on another machine or gone."""
    state = _read_process_state(beat)
    return state in ("T", "t") if state else None


def is_gone(process: Heartbeat | ProcessHealth) -> bool:
    """Say whether a process of this machine has ended; False where that cannot be seen, as on macOS."""
    return _read_process_state(process) in ("", "Z", "X")


def _read_process_state(process: Heartbeat | ProcessHealth) -> str | None:
    """Return the kernel's letter for the state; empty for a process that is gone, None for one on another machine.

    None also where the system has no /proc.
    """
    if process.host != socket.gethostname() or not PROCESSES.exists():
        return None
    try:
        return (PROCESSES / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
