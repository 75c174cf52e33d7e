"""Fill a ClickHouse and a Kafka, start `rollbus ui` on them, and let a browser look; `make test-ui` prepares all of it.

python -m tests.ui.run FOLDER_OF_NODE_MODULES [SCREENSHOT_FOLDER]
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from tests.console import ROLLBUS
from tests.health.situations import RUNS, SCORING, SENTENCES, TRAINER, write_situations
from tests.ui import database, hostile, world

PAGE_TESTS = sorted(Path(__file__).parent.glob("*.test.mjs"))
LIMIT_S = 1_800
OWNER = "the owner's token"


def main(modules: Path, screenshots: Path | None) -> int:
    """Return the exit status of the browser's tests."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), find_free_port()
        clickhouse = ServiceProcess(
            clickhouse_service(folder=folder / "data", port=port), log_path=folder / "log", prefix=tethered()
        )
        broker = kafka_service(folder=folder / "kafka", client_port=find_free_port())
        kafka = ServiceProcess(broker, log_path=folder / "kafka.log", prefix=tethered())
        try:
            for service in (clickhouse, kafka):
                service.start()
            for service in (clickhouse, kafka):
                service.wait_until_healthy()
            world.write_now(broker.address)
            database.fill(ClickHouseSettings(port=port, database="page"))
            database.fill_long(ClickHouseSettings(port=port, database="long"))
            database.fill_broken(ClickHouseSettings(port=port, database="broken"))
            fill_situations(ClickHouseSettings(port=port, database="lost"))
            trajectory = hostile.fill(ClickHouseSettings(port=port, database="hostile"))
            lost_settings = {"runs": RUNS, "scoring": SCORING, "trainer": TRAINER}
            with (
                page(port, "page", folder) as page_without_kafka,
                page(port, "page", folder, kafka=broker.address) as page_with_kafka,
                page(port, "hostile", folder) as hostile_page,
                page(port, "long", folder) as long_page,
                page(port, "broken", folder) as broken_page,
                page(port, "fresh", folder, run="orders") as fresh_page,
                page(port, "lost", folder, kafka=broker.address, run="lost", **lost_settings) as lost_page,
            ):
                environment = {
                    "PAGE": page_without_kafka,
                    "BUSY": page_with_kafka,
                    "HOSTILE": hostile_page,
                    "LONG": long_page,
                    "BROKEN": broken_page,
                    "FRESH": fresh_page,
                    "LOST": lost_page,
                    "TRAJECTORY": trajectory,
                    "OWNER": OWNER,
                    "SENTENCES": json.dumps(SENTENCES),
                    "CLICKHOUSE": f"http://127.0.0.1:{port}/",
                }
                return run_browser_tests(environment, modules, screenshots)
        finally:
            clickhouse.stop()
            kafka.stop()


def fill_situations(settings: ClickHouseSettings) -> None:
    """Write what goes wrong on the way to a step, as if it were now."""
    migrate(settings)
    client = ClickHouse(settings)
    try:
        write_situations(client, "rollbus.", round(time.time() * 1000))
    finally:
        client.close()


@contextmanager
def page(
    port: int, database: str, folder: Path, *, kafka: str = "127.0.0.1:9", run: str = "main", **sections: Any
) -> Iterator[str]:
    """Start the page as a user does and yield its address; without `kafka` no broker answers it."""
    keys = {"owner": ["of the owner" * 4], "principals": ["of principals" * 4]}
    settings = {"runs": [{"run_id": run, "model": "agent"}], "signing": keys, **sections}
    (folder / f"{run}.yaml").write_text(yaml.safe_dump(settings))
    variables = {
        "ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": kafka,
        "ROLLBUS_CLICKHOUSE__PORT": str(port),
        "ROLLBUS_CLICKHOUSE__DATABASE": database,
        "ROLLBUS_ART_SERVER__TOKEN": OWNER,
    }
    command = [ROLLBUS, "--config", f"{run}.yaml", "ui", "--port", "0", "--tokenizer", str(write_tokenizer(folder))]
    process = subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        address_match = re.match(r"(http://127\.0\.0\.1:\d+/#token=\w+)", process.stdout.readline())
        assert address_match, "rollbus ui did not say where it listens"
        yield address_match[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)


def run_browser_tests(variables: Mapping[str, str], modules: Path, screenshots: Path | None) -> int:
    """Let a browser test the pages; return the exit status."""
    environment = {**os.environ, **variables, "NODE_FOLDER": str(modules.resolve())}
    if screenshots is not None:
        environment["SCREENSHOTS"] = str(screenshots.resolve())
    tests = ["node", "--test", "--test-reporter=spec", *map(str, PAGE_TESTS)]
    return subprocess.run(tests, env=environment, timeout=LIMIT_S).returncode


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer in which token n is the word `wn`, as large as the generated ids."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordLevel({f"\u0120w{number}": number for number in range(32_000)}, unk_token="w0"))
    tokenizer.decoder = decoders.ByteLevel()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
