#!/usr/bin/env bash
# NumPy 2.4.6: a large array of zeros that is written here and there takes 2 MB of memory for each place on Linux.
#
# Expected: zeros come from the system untouched, so an array takes memory only for the pages of 4 kB that are written. That is how caches of
# keys and values, tables by hash and memory for long sequences are often laid out: large, and mostly empty.
# What happens: for arrays of 4 MB and more NumPy asks the kernel for huge pages (madvise), which is why it is fast where all is written. With
# transparent huge pages at `madvise`, as most distributions have them, one byte in 2 MB then takes 2 MB. NUMPY_MADVISE_HUGEPAGE=0 turns it off for
# a whole process; an anonymous mmap, which no one asks that for, takes what is written.
# Whom it matters to: whoever serves a model on a CPU with a cache for many long sequences, and sees gigabytes after a few short ones.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check numpy==2.4.6
cat >"$folder/try.py" <<'PY'
import mmap
import sys
from pathlib import Path

import numpy as np

SIZE, STEP = 256 * 2**20, 2 * 2**20
setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip()


def look_at(array: np.ndarray) -> tuple[bool, int]:
    """Return whether huge pages were asked for where the array lies, and its resident kB after one byte in 2 MB."""
    array[::STEP] = 1
    address = array.ctypes.data + SIZE // 2
    is_inside, fields = False, {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            first, last = (int(part, 16) for part in name.split("-"))
            is_inside = first <= address < last
        elif is_inside:
            fields[name] = rest.split()
    return "hg" in fields["VmFlags:"], int(fields["Rss:"][0])


by_numpy = look_at(np.zeros(SIZE, dtype=np.uint8))
by_mmap = look_at(np.frombuffer(mmap.mmap(-1, SIZE), dtype=np.uint8))
print("numpy", np.__version__, "| huge pages:", setting)
print(f"numpy.zeros of 256 MB, 128 bytes written: huge pages asked for {by_numpy[0]}, resident {by_numpy[1]:,} kB")
print(f"mmap of 256 MB, 128 bytes written: huge pages asked for {by_mmap[0]}, resident {by_mmap[1]:,} kB")
sys.exit(not by_numpy[0] or by_mmap[0])
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
