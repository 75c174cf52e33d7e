"""A worker whose broker has gone away ends when it is asked to, and says no more than that."""

import signal
import subprocess
from pathlib import Path

import pytest

from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from tests.console import ROLLBUS
from tests.installs import own_environment, run
from tests.services.brokers import own_broker, running_broker
from tests.services.commands import write_config
from tests.waiting import wait_until

pytestmark = pytest.mark.services
AWAY = "no heartbeat can be written"
"""In a line of the worker that has asked for the broker for seconds: then fetches wait for it, too."""
STAGES = ("alias", "assembly", "scoring", "grouping.main", "curriculum.main")


def test_a_worker_without_its_broker_ends_without_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with running_broker(own_broker(tmp_path / "kafka")) as address:
        write_config(tmp_path, address, DEFAULT_NAMESPACE, worker={"event_partitions": 1})
        run(ROLLBUS, "topics", "create", cwd=tmp_path)
        with log.open("w") as output:
            worker = subprocess.Popen(
                [ROLLBUS, "worker", "run"], cwd=tmp_path, env=own_environment(), stdout=output, stderr=output
            )
        try:
            wait_until(
                lambda: all(f"open id={stage}[0]" in log.read_text() for stage in STAGES), "a partition is closed"
            )
        except BaseException:
            worker.kill()
            raise
    try:
        wait_until(lambda: AWAY in log.read_text(), "the worker does not notice")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    finally:
        worker.kill()
        worker.wait()
    text = log.read_text()
    assert "Traceback" not in text, text
