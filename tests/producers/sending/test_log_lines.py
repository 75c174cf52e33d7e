"""What a broker that is away makes a program log: lines of ours with counts, none of the Kafka client's."""

import socket

from tests.producers.recorded_events import run_program

PROGRAM = """
import logging, sys, time
import aiokafka.client
logging.basicConfig(level=logging.WARNING)
from rollbus import init
rb = init(bootstrap_servers=sys.argv[1])
with rb.episode(task="t"):
    pass
while rb.healthy is None:
    time.sleep(0.01)
logging.getLogger("aiokafka.client").warning("of another client")
rb.close(0.5)
"""


def test_an_absent_broker_is_logged_in_two_lines_with_a_count() -> None:
    with socket.socket() as taken:  # bound, and listening to nobody
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        completed = run_program(PROGRAM, address)
    unavailable, other, lost = completed.stderr.splitlines()
    assert "events wait in memory, their sink is unavailable" in unavailable
    assert "of another client" in other
    assert "rollbus: 4 records (events, and the recorder's reports on them) were not delivered" in lost
