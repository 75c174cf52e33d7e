"""Many threads of one process record at once, and nothing that they do is lost."""

import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.events import RewardReported, WriterClosed

THREADS, ROUNDS = 4, 300


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_enter_one_block_at_once_each_end_their_own_episode(recorder: Recorder) -> None:
    scope, first_left = recorder.episode(task="t"), threading.Event()
    inside = threading.Barrier(2, timeout=120)
    ended: list[bool] = []

    def agent(*, first: bool) -> None:
        with scope as episode:
            inside.wait()
            if first:
                return
            assert first_left.wait(120)
            ended.append(episode.ended)

    threads = [threading.Thread(target=agent, kwargs={"first": first}) for first in (True, False)]
    for thread in threads:
        thread.start()
    threads[0].join()
    first_left.set()
    threads[1].join()
    assert ended == [False]


def test_threads_that_join_episodes_and_report_at_once_lose_nothing(recorder: Recorder, sink: MemorySink) -> None:
    def serve(thread: int) -> None:
        for number in range(ROUNDS):
            with recorder.attach(str(uuid.UUID(int=thread * ROUNDS + number))) as episode:
                episode.tool("x")
                recorder.feedback(f"order-{thread}-{number}", reward=1.0)
            joined.append(episode)

    joined: list[object] = []
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(serve, range(THREADS)))
    assert recorder.flush(120)
    assert {name: count for name, count in recorder.counters.items() if name.startswith("hook_errors")} == {}
    records = sink.records()
    assert sum(isinstance(record, RewardReported) for record in records) == THREADS * ROUNDS
    assert sum(isinstance(record, WriterClosed) for record in records) == THREADS * ROUNDS
