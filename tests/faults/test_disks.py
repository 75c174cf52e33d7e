"""Full disks: the broker stops and says so, loses nothing and goes on once there is room."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.streams.kafka.settings import StreamSettings
from tests.faults.conftest import SOON, NewWorker, finish, open_worker
from tests.faults.episodes import Traffic
from tests.faults.test_brokers import start
from tests.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.faults]

DISK = "96m"
HOLD = 'mount -t tmpfs -o size={size} none "$0" && cp -a "$1"/. "$0" && echo ready && exec sleep infinity'


class SmallDisk:
    """A folder that is a file system of its own, for the processes that enter it; no right of root is needed."""

    def __init__(self, folder: Path, content: Path) -> None:
        """Start with what is in `content`."""
        script = HOLD.format(size=DISK)
        command = [*tethered(), "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        self._holder = subprocess.Popen([*command, str(folder), str(content)], stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        self._inside = Path(f"/proc/{self._holder.pid}/root{folder}")

    @property
    def enter(self) -> list[str]:
        """The beginning of a command line that runs the rest with this disk in its place."""
        return ["nsenter", f"--target={self._holder.pid}", "--user", "--preserve-credentials", "--mount", "--"]

    def fill(self) -> None:
        """Leave no room."""
        with (self._inside / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(65_536))

    def free(self) -> None:
        """Make room again."""
        (self._inside / "filler").unlink()

    def close(self) -> None:
        """Give it back."""
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def disk_and_broker(tmp_path: Path) -> Iterator[tuple[SmallDisk, ServiceProcess]]:
    """A broker whose data are on a small disk."""
    folder = tmp_path / "kafka"
    service = kafka_service(folder=folder, client_port=find_free_port(), changes=SOON)
    service.command()  # formats the folder; the disk begins with a copy
    template = folder.with_name("template")
    (folder / "data").rename(template)
    (folder / "data").mkdir()
    disk = SmallDisk(folder / "data", template)
    for entry in template.iterdir():
        entry.rename(folder / "data" / entry.name)  # the service looks whether it is formatted from outside
    broker = ServiceProcess(service, log_path=tmp_path / "kafka.log", prefix=[*tethered(), *disk.enter])
    try:
        start([broker])
        yield disk, broker
    finally:
        broker.stop(grace_s=1.0)
        disk.close()


@pytest.fixture
def kafka(disk_and_broker: tuple[SmallDisk, ServiceProcess]) -> str:
    """Its address."""
    return disk_and_broker[1].service.address


async def test_a_broker_whose_disk_is_full_loses_nothing_and_goes_on_with_room(
    disk_and_broker: tuple[SmallDisk, ServiceProcess],
    settings: StreamSettings,
    traffic: Traffic,
    workers: NewWorker,
) -> None:
    disk, broker = disk_and_broker
    worker = await open_worker(workers, settings)
    feeding = asyncio.create_task(traffic.send(range(40), pause_s=0.2))
    await asyncio.sleep(2.0)
    await asyncio.to_thread(disk.fill)
    await until(lambda: not broker.is_running(), "the broker goes on without room")
    assert "No space left on device" in broker.log_path.read_text()
    disk.free()
    await asyncio.to_thread(start, [broker])
    await feeding
    await finish(worker, traffic)
