"""Many threads of one process record at once, and nothing that they do is lost."""

import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.events import RewardReported, WriterClosed

THREADS, ROUNDS = 4, 300


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_join_episodes_and_report_at_once_lose_nothing(recorder: Recorder, sink: MemorySink) -> None:
    def serve(thread: int) -> None:
        for number in range(ROUNDS):
            with recorder.attach(str(uuid.UUID(int=thread * ROUNDS + number))) as episode:
                episode.tool("x")
                recorder.feedback(f"order-{thread}-{number}", reward=1.0)
            joined.append(episode)

    joined: list[object] = []
    threads = [threading.Thread(target=serve, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.flush(10)
    assert {name: count for name, count in recorder.counters.items() if name.startswith("hook_errors")} == {}
    records = sink.records()
    assert sum(isinstance(record, RewardReported) for record in records) == THREADS * ROUNDS
    assert sum(isinstance(record, WriterClosed) for record in records) == THREADS * ROUNDS
