"""Open the port of a server, or say what is wrong with it and what to change."""

import errno
import socket

from rollbus.schemas.errors import ConfigurationError


def open_listener(
    host: str, port: int, *, name: str = "", host_setting: str = "--host", port_setting: str = "--port"
) -> socket.socket:
    """Return a socket that listens there; port 0 takes a free one. Raises ConfigurationError.

    Who connects from now on waits for the server. A socket that is only bound would not hold the port: another process
    can bind it, too, and the one that listens first answers in the name of both.
    """
    try:
        # With the protocol named, asyncio turns Nagle's algorithm off; without it each answer waits 40 ms for an ack.
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        return _listen(*places[0])
    except (OSError, UnicodeError) as error:
        place = f"port {port} of {host}{f' for {name}' if name else ''}"
        code = error.errno if isinstance(error, OSError) else None
        if code == errno.EADDRINUSE:
            problem = f"{place} is taken; stop what listens there, or change {port_setting}"
        elif code == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror | UnicodeError):
            problem = f"{place}: {host!r} is not an address of this machine ({_reason(error)}); change {host_setting}"
        else:
            problem = f"{place} cannot be opened ({_reason(error)}); change {port_setting}"
        raise ConfigurationError(problem) from error


def _listen(family: int, kind: int, protocol: int, _: str, address: object) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # "::" takes no port of another program
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _reason(error: OSError | UnicodeError) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return text or str(error)
