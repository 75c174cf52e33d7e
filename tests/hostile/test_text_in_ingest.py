"""What `ingest` has sent is gone from its files, the write-ahead file too: `forget` says so."""

import zlib
from pathlib import Path

from rollbus.producers.imports.formats.trace import TracePart
from rollbus.producers.imports.store import Store

TRACES = 86


def part(number: int) -> TracePart:
    return TracePart(f"t{number}", "span", "1", {"said": f"by ann, {number}"}, is_last=True)


def copies(folder: Path) -> int:
    """How many of the texts are in any file of the store."""
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    texts = [zlib.compress(f'{{"said":"by ann, {number}"}}'.encode(), 1) for number in range(TRACES)]
    return sum(text in content for text in texts)


def test_nothing_of_a_trace_that_was_sent_is_left_in_its_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "otlp.sqlite")
    for number in range(TRACES):
        store.add([part(number)], 0)
        store.commit()
    assert copies(tmp_path) == TRACES
    store.mark_sent([f"t{number}" for number in range(TRACES)])
    store.commit()
    assert copies(tmp_path) == 0
    store.close()


def test_the_next_start_removes_the_texts_that_a_kill_left(tmp_path: Path) -> None:
    store = Store(tmp_path / "otlp.sqlite")
    store.add([part(0)], 0)
    store.commit()
    store.close()
    again = Store(tmp_path / "otlp.sqlite")
    again.mark_sent(["t0"])
    again.commit()
    assert copies(tmp_path) == 0
    again.close()
