"""Records of what `up` has started, so that `down` ends exactly that: one small file per service, and a lock.

A record is written as soon as its process exists, whole or not at all. So `down` finds everything that an interrupted
`up` has started.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rollbus.local.process.processes import ProcessIdentity, describe, is_running
from rollbus.runtime.files import draft_of
from rollbus.schemas.errors import ConfigurationError
from rollbus.stack_settings import StackSettings

LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class StartedService:
    """One service that `up` started."""

    name: str
    identity: ProcessIdentity
    address: str
    started_at_ms: int
    """Wall clock; only orders the services, so that `down` ends the last one first."""


def write(run_dir: Path, service: StartedService) -> None:
    """Record a started service, replacing an older record of it."""
    with draft_of(run_dir / f"{service.name}.json") as draft, draft.open("w", encoding="utf-8") as file:
        json.dump(asdict(service), file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def read(run_dir: Path, name: str) -> StartedService | None:
    """The record of a service, or None; one that cannot be read raises ConfigurationError."""
    path = run_dir / f"{name}.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return StartedService(**{**fields, "identity": ProcessIdentity(**fields["identity"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{path} is not a record of a started service ({error}); look for its process, then remove it"
        ) from error


def read_all(run_dir: Path) -> tuple[StartedService, ...]:
    """Every recorded service, the first one started first."""
    records = [read(run_dir, path.stem) for path in run_dir.glob("*.json")]
    return tuple(sorted((r for r in records if r is not None), key=lambda r: (r.started_at_ms, r.name)))


def find_stack_of(pid: int) -> Path | None:
    """Return the data folder of the stack, this one or another, whose `up` started a process; None if none did.

    A process of a stack writes its output into a log of the data folder, and is recorded there.
    """
    try:
        log = Path(os.readlink(f"/proc/{pid}/fd/1"))
        service = read(StackSettings(data_dir=log.parent.parent).run_dir, log.stem)
        is_of_it = service is not None and is_running(service.identity) and os.getsid(pid) == service.identity.pid
    except (OSError, ConfigurationError):
        return None
    return log.parent.parent if is_of_it else None


def remove(run_dir: Path, name: str) -> None:
    (run_dir / f"{name}.json").unlink(missing_ok=True)


@contextmanager
def hold_run_dir(run_dir: Path) -> Iterator[None]:
    """Hold the folder for one `up` or `down`."""
    with hold_file(
        run_dir / LOCK_NAME,
        lambda holder: f"{run_dir.parent} is being started or stopped by {holder}; wait until it is done",
    ):
        yield


@contextmanager
def hold_file(lock: Path, refusal: Callable[[str], str]) -> Iterator[None]:
    """Hold a file against other processes; the kernel lets go when this one ends, however it ends.

    Raises ConfigurationError with the text that `refusal` makes for the process that holds it.
    """
    with lock.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            by = describe(int(holder)) if holder.isdigit() else "another process"
            raise ConfigurationError(refusal(by)) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
