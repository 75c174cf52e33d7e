"""What this machine has: names, cores for this process, its Python, and a folder for what all projects fetched."""

import importlib.util
import os
import sys
from pathlib import Path

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine. A page of a foreign site whose name resolves to it (DNS rebinding) asks under another name."""


def count_bound_cores() -> int:
    """Return the cores that the system lets this process run on, or all where it does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """Return the bytes that programs can have without swapping, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def install_command(package: str) -> str:
    """Return the command that installs a package into the Python that runs this."""
    if importlib.util.find_spec("pip") is not None:
        return f"{sys.executable} -m pip install {package}"
    return f"uv pip install --python {sys.executable} {package}"


def user_cache() -> Path:
    """Return rollbus's folder in the user's cache, for models and Kafka's jars; XDG_CACHE_HOME moves it.

    It need not exist yet.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbus"
