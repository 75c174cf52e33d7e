"""Open the port of a command that serves HTTP."""

import socket

import click


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raises ClickException with the remedy if the port is taken."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        raise click.ClickException(f"port {port} of {host} is taken ({error.strerror}); use --port") from error
