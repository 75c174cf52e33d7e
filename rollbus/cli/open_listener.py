"""Open the port of a command that serves HTTP."""

import errno
import socket

import click


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raises ClickException with the reason and the option that helps."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except (OSError, UnicodeError) as error:
        raise click.ClickException(_describe(host, port, error)) from error


def _describe(host: str, port: int, error: OSError | UnicodeError) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return f"port {port} of {host} is taken; use --port"
    if code == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror | UnicodeError):
        return f"{host!r} is not an address of this machine ({_reason(error)}); use --host"
    return f"port {port} of {host} cannot be opened ({_reason(error)}); use --port"


def _reason(error: OSError | UnicodeError) -> str:
    """Return the system's words; Python adds the address to some of them."""
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).partition(" (while attempting")[0]
