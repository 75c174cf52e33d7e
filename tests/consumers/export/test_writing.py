"""Files are written, and named by their hash, without being in memory."""

import hashlib
import tracemalloc
from pathlib import Path

from rollbus.consumers.export.writing import write_rows

MIB = 1 << 20


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        written = write_rows(tmp_path, "train", ({"text": "x" * MIB} for _ in range(24)), "jsonl")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    data = (tmp_path / "train.jsonl").read_bytes()
    assert (written.rows, written.bytes, written.sha256) == (24, len(data), hashlib.sha256(data).hexdigest())
    assert most < 12 * MIB
