"""What this machine has: names, cores, memory, names of signals, its Python, and a folder for what was fetched."""

import importlib.util
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine. A page of a foreign site whose name resolves to it (DNS rebinding) asks under another name."""

_GROUPS = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of both versions of Linux' control groups: folder, limit, use, and what of the use is files that may go."""


def count_bound_cores() -> int:
    """Return the cores that the system lets this process run on, or all where it does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def disk_usage(folder: Path) -> shutil._ntuple_diskusage | None:
    """Return the room of the disk where a folder is, or would be; None where the system does not say how large it is.

    Some file systems in user space and over the network report 0 bytes of 0.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        usage = shutil.disk_usage(there)
    except OSError:
        return None
    return usage if usage.total else None


def available_memory(system: Path = Path("/")) -> int | None:
    """Return the bytes that programs can have without swapping, of the machine and in its container.

    None where nothing says; `system` is the folder of `proc` and `sys`.
    """
    free_bytes = [_free_of_machine(system), *(_free_in_group(system, *names) for names in _GROUPS)]
    return min((count for count in free_bytes if count is not None), default=None)


def _free_of_machine(system: Path) -> int | None:
    available = _read_entry(system / "proc/meminfo", "MemAvailable:")
    return available * 1024 if available else None  # a sandbox may show a meminfo of zeros


def _free_in_group(system: Path, folder: str, limit: str, used: str, reclaimable: str) -> int | None:
    """Return what a container's limit leaves: the machine's own numbers, which it shows too, say nothing of it."""
    most, taken = (_read_entry(system / folder / name) for name in (limit, used))
    if most is None or taken is None:
        return None
    return max(0, most - taken + (_read_entry(system / folder / "memory.stat", reclaimable) or 0))


def _read_entry(path: Path, name: str = "") -> int | None:
    """Return the number of a file, or of its line of a name; None where there is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return None
    texts = [words[1] if name else words[0] for words in lines if words and (not name or words[0] == name)]
    return int(texts[0]) if texts and texts[0].isdecimal() else None


def name_signal(number: int) -> str:
    """Return what a signal is called; most of the real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def install_command(package: str) -> str:
    """Return the command that installs a package into the Python that runs this."""
    if importlib.util.find_spec("pip") is not None:
        return f"{shlex.quote(sys.executable)} -m pip install {package}"
    return f"uv pip install --python {shlex.quote(sys.executable)} {package}"


def user_cache() -> Path:
    """Return rollbus's folder in the user's cache, for models and Kafka's jars; XDG_CACHE_HOME moves it.

    It need not exist yet.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbus"
