"""A program of several processes: workers of a pool, and a child that is forked inside an episode."""

from collections import Counter
from pathlib import Path

import pytest

from rollbus.schemas.records.events import WriterClosed
from tests.agents.compare import compare_turns
from tests.agents.conftest import SEED
from tests.agents.model_server import ModelServer
from tests.producers.recorded_events import read_spool, run_program

PROGRAM = """
    import multiprocessing, sys
    import openai, rollbus

    url, folder = sys.argv[1:]
    recorder = rollbus.init(bootstrap_servers="127.0.0.1:9", spool_folder=folder)
    rollbus.instrument(recorder)
    fork = multiprocessing.get_context("fork")

    def ask(text):
        with openai.OpenAI(api_key="k", base_url=url, max_retries=0) as client:
            try:
                client.chat.completions.create(model="agent", messages=[{"role": "user", "content": text}])
            except openai.APIError:
                pass

    def work(number):
        with recorder.episode(task="stock", episode_id=f"e{number}"):
            ask(f"in a worker <e{number}>")

    pool = fork.Pool(2)
    pool.map(work, [1, 2, 3], chunksize=1)
    pool.close()
    pool.join()
    with recorder.episode(task="stock", episode_id="e4") as episode:
        ask("in the parent <e4>")
        child = fork.Process(target=ask, args=("in a child <e4>",))
        child.start()
        child.join()
        ask("again in the parent <e4>")
"""


@pytest.mark.parametrize("server", [SEED], indirect=True)
def test_workers_and_forks_are_recorded_and_close_their_parts_of_an_episode(
    server: ModelServer, tmp_path: Path
) -> None:
    completed = run_program(PROGRAM, server.url, tmp_path)
    assert completed.returncode == 0, completed.stderr
    events = read_spool(tmp_path)
    assert len(compare_turns(server, events)) == 6
    written = Counter((event.episode_id, event.writer_id) for event in events if not isinstance(event, WriterClosed))
    closed = {(event.episode_id, event.writer_id): event.count for event in events if isinstance(event, WriterClosed)}
    assert closed == written, "a child closes its part of an episode, too"
