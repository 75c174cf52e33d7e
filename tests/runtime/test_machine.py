"""What the machine has: its memory, and no more than its container has; names of signals."""

from pathlib import Path

import pytest

from rollbus.runtime.machine import available_memory, name_signal

MEMINFO = "MemTotal: 2048 kB\nMemAvailable:   1000 kB\n"


def system(folder: Path, **files: str) -> Path:
    """A root folder with these files: `__` in a name is a slash, and `_dot_` a point."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc__meminfo": ""}, None),
        ({"proc__meminfo": "MemTotal: 0 kB\nMemAvailable: 0 kB\n"}, None),
        ({"proc__meminfo": MEMINFO}, 1_024_000),
        ({"proc__meminfo": MEMINFO, "sys__fs__cgroup__memory_dot_max": "500000\n"}, 1_024_000),
    ],
)
def test_available_memory_is_what_the_machine_says(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    assert available_memory(system(tmp_path, **files)) == free


@pytest.mark.parametrize(
    ("most", "used", "stat", "free"),
    [
        ("500000", "200000", "", 300_000),
        ("500000", "200000", "anon 9\ninactive_file 50000\n", 350_000),
        ("500000", "600000", "", 0),
        ("max", "200000", "", 1_024_000),
        ("9000000", "200000", "", 1_024_000),
    ],
)
def test_a_container_has_no_more_than_its_limit(tmp_path: Path, most: str, used: str, stat: str, free: int) -> None:
    group = {"max": most, "current": used, "stat": stat}
    files = {f"sys__fs__cgroup__memory_dot_{name}": text for name, text in group.items()}
    assert available_memory(system(tmp_path, proc__meminfo=MEMINFO, **files)) == free


def test_a_container_of_an_older_kernel_has_no_more_than_its_limit(tmp_path: Path) -> None:
    group = {"limit_in_bytes": "500000", "usage_in_bytes": "200000", "stat": "total_inactive_file 1000\n"}
    files = {f"sys__fs__cgroup__memory__memory_dot_{name}": text for name, text in group.items()}
    assert available_memory(system(tmp_path, proc__meminfo=MEMINFO, **files)) == 301_000


def test_a_signal_without_a_name_is_its_number() -> None:
    assert (name_signal(9), name_signal(40)) == ("SIGKILL", "signal 40")
