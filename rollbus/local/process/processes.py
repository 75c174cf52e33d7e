"""Start a process in its own session, recognise it later, and end it with everything it started.

A process is identified by more than its number, because numbers are used again: `ProcessIdentity` adds the start time
from `/proc/PID/stat` and the boot. Nothing here keeps a handle on the child, so a process may outlive its starter and
be ended by another command. Linux only.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError

POLL_S = 0.05
TERMINATE_GRACE_S = 20.0
"""Between SIGTERM and SIGKILL: Kafka needs a few seconds to close its logs cleanly."""
KILL_WAIT_S = 10.0
STANDARD_ERROR = 2

_STATE = 0
_SESSION = 3
_THREADS = 17
_START_TIME = 19
"""Places in /proc/PID/stat counted from the state field, which follows the name in parentheses (proc_pid_stat(5))."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this machine, which no later process equals."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process."""
    boot_id: str


_exit_codes: dict[ProcessIdentity, int] = {}
"""Of the children that were reaped here; the kernel reports each only once."""


def spawn(
    command: Sequence[str],
    *,
    log_path: Path,
    env: Mapping[str, str] | None = None,
) -> ProcessIdentity:
    """Start `command` as leader of a new session, its output appended to `log_path`, without this one's open files.

    posix_spawn and not Popen: the process may outlive this one, and a Popen object warns about that.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            dict(os.environ if env is None else env),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, number) for number in _inheritable_files()),
            ],
            setsid=True,
            setsigmask=[],
            # Python ignores SIGPIPE and a background shell SIGINT; a child would inherit both.
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
    except OSError as error:
        raise ConfigurationError(f"cannot start {command[0]!r}: {error.strerror or error}") from error
    identity = identify(pid)
    if identity is None:  # cannot happen before the child is reaped, and only we can reap it
        raise ConfigurationError(f"{command[0]!r} (pid {pid}) ended at once; see {log_path}")
    return identity


def _inheritable_files() -> Iterator[int]:
    """Yield the open files that a child would keep, without the standard ones: a lock of our caller, a pipe."""
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # that of the folder itself
            if number > STANDARD_ERROR and os.get_inheritable(number):
                yield number


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now, or None; a zombie still counts here."""
    fields = _stat_fields(pid)
    return None if fields is None else ProcessIdentity(pid, int(fields[_START_TIME]), _boot_id())


def is_running(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still runs; a zombie does not, and ours is reaped on the way."""
    fields = _stat_fields(identity.pid)
    if fields is None or int(fields[_START_TIME]) != identity.start_ticks or _boot_id() != identity.boot_id:
        return False
    if _is_dead(fields):
        _reap(identity)
        return False
    return True


class ProcessorWait:
    """How long a process was ready to run and had no processor, since this was made.

    On a machine with much other work that is most of the time, and says nothing against the process.
    """

    def __init__(self, pid: int) -> None:
        """Begin to count."""
        self._pid, self._waited_s = pid, 0.0
        self._looked_s, self._waits_ns = time.monotonic(), _thread_waits_ns(pid)

    def measure_s(self) -> float:
        """Return the time so far: between two looks that of the thread that waited longest."""
        now_s, waits_ns = time.monotonic(), _thread_waits_ns(self._pid)
        longest_ns = max((ns - self._waits_ns.get(thread, 0) for thread, ns in waits_ns.items()), default=0)
        self._waited_s += min(longest_ns / 1e9, now_s - self._looked_s)
        self._looked_s, self._waits_ns = now_s, waits_ns
        return self._waited_s


def exit_code(identity: ProcessIdentity) -> int | None:
    """How a process that this one started has ended: its exit code, or minus the signal that ended it; else None."""
    is_running(identity)
    return _exit_codes.get(identity)


def anything_left(identity: ProcessIdentity) -> bool:
    """Whether the process, or any process of the session it led, still runs."""
    if is_running(identity):
        return True
    if _boot_id() != identity.boot_id:
        return False
    now_there = identify(identity.pid)
    if now_there is not None and now_there != identity:
        # The kernel gives the number to another process only after the whole session has ended.
        return False
    return bool(session_members(identity.pid))


def session_members(session_id: int) -> tuple[int, ...]:
    """Numbers of the processes of one session that still run."""
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields is not None and int(fields[_SESSION]) == session_id and not _is_dead(fields):
                members.append(int(entry))
    return tuple(sorted(members))


def end(identity: ProcessIdentity, *, grace_s: float = TERMINATE_GRACE_S) -> bool:
    """SIGTERM to the whole session, SIGKILL to what is left after `grace_s`. True if anything had to be ended.

    A process that merely has the same number is never touched.
    """
    if not anything_left(identity):
        return False
    _signal_session(identity.pid, signal.SIGTERM)
    if not _wait_gone(identity, grace_s):
        _signal_session(identity.pid, signal.SIGKILL)
        _wait_gone(identity, KILL_WAIT_S)
    return True


def describe(pid: int) -> str:
    """Short command line of a process for messages: '4711 (java kafka.Kafka)'."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return str(pid)
    words = [argument.decode(errors="replace") for argument in arguments if argument]
    return f"{pid} ({' '.join(words)[:80] or name})"


def _wait_gone(identity: ProcessIdentity, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while anything_left(identity):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _signal_session(session_id: int, signum: signal.Signals) -> None:
    for pid in session_members(session_id):
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def _reap(identity: ProcessIdentity) -> None:
    """Collect the exit status if it is our child; another's child is collected by its parent."""
    with suppress(ChildProcessError):
        pid, status = os.waitpid(identity.pid, os.WNOHANG)
        if pid == identity.pid:
            _exit_codes[identity] = os.waitstatus_to_exitcode(status)


def _is_dead(fields: list[str]) -> bool:
    """A zombie whose other threads are gone too; until then its ports and locks are still held."""
    return fields[_STATE] in "ZX" and int(fields[_THREADS]) <= 1


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _thread_waits_ns(pid: int) -> dict[str, int]:
    """Return the second number of each thread's schedstat (sched-stats.rst); nothing where the kernel has none."""
    waits_ns = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
                waits_ns[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return waits_ns


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
