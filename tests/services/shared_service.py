"""One service for all worker processes of a test run: the first worker that needs it starts it.

Every worker holds a shared lock on a file while it uses the service. The worker that started it waits at its end until
the lock is free, so it does not take a broker away from the others.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.local.process.service import Service, ServiceProcess
from rollbus.local.process.tether import tethered

POLL_S = 0.1


@contextmanager
def shared_service(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], tuple[Service, str]]
) -> Iterator[str]:
    """Yield the address of the service; `make` takes its folder and returns it with its address."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    address, process = folder / "address", None
    with (folder / "users").open("a") as users:
        with _locked(folder / "change"):
            if not address.exists():
                service, text = make(folder)
                patient = replace(service, start_timeout_s=300.0)  # all the run begins at this moment
                process = ServiceProcess(patient, log_path=folder / "service.log", prefix=tethered())
                try:
                    process.start()
                    process.wait_until_healthy()
                except BaseException:
                    process.stop()
                    raise
                address.write_text(text)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield address.read_text()
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            while process is not None:
                with _locked(folder / "change"), suppress(BlockingIOError):
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    address.unlink()
                    process.stop()
                    process = None
                    fcntl.flock(users, fcntl.LOCK_UN)
                time.sleep(POLL_S)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
