"""Ports on loopback: whether one is free, a free one, and the process that uses one."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rollbus.local.process.processes import describe
from rollbus.local.process.state import find_stack_of
from rollbus.schemas.errors import ConfigurationError
from rollbus.stack_settings import HOST

_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp (include/net/tcp_states.h)."""


_PORTS = range(10_000, 32_768)
"""Below the first port for outgoing connections on Linux (net/ipv4/tcp_ipv4.c); other systems begin higher."""
_APART = 97
"""Ports from the first of one process to the first of the next."""
_calls = itertools.count()


def find_free_port() -> int:
    """Return a port on which no process listens at this moment, another one at each call.

    It is below those that the kernel gives to outgoing connections: a server that is stopped and started again finds
    its port as it left it. Processes begin at different places, so that those which start together rarely meet.
    """
    first = os.getpid() * _APART
    return next(port for call in _calls if is_free(port := _PORTS[(first + call) % len(_PORTS)]))


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now; connections in TIME_WAIT do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def require_free(port: int, *, service: str, setting: str) -> None:
    """Raise ConfigurationError unless the port is free; it names the process that uses it, if that can be read."""
    if is_free(port):
        return
    owner = listener_of(port)
    end = "stop that program"
    if owner is not None and (stack := find_stack_of(owner)) is not None:
        end = f"end that stack by `rollbus down` in the folder of {stack}"
    raise ConfigurationError(
        f"port {port} for {service} is already in use by {describe_listener(owner)}; {end}, or set "
        f"`stack: {setting}:` to a free port"
    )


def describe_listener(pid: int | None) -> str:
    """Name who uses a port, for messages: a process, of which local stack, or another program."""
    if pid is None:
        return "another program"
    stack = find_stack_of(pid)
    return f"process {describe(pid)}" + (f" of the local stack in {stack}" if stack is not None else "")


def listener_of(port: int) -> int | None:
    """Return the pid of the process that listens on the port, or None if there is none or it cannot be read."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        if not sockets.isdisjoint(_open_files(Path(f"/proc/{entry}/fd"))):
            return int(entry)
    return None


def _open_files(descriptors: Path) -> Iterator[str]:
    """Yield what the descriptors of a process point to; nothing if it has ended or may not be read."""
    with suppress(OSError):
        for name in os.listdir(descriptors):
            with suppress(OSError):  # closed meanwhile
                yield os.readlink(descriptors / name)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(fields[9])
    return inodes
