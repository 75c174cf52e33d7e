"""A port that cannot be opened is refused with its real reason."""

import errno
import socket

import click
import pytest

from rollbus.cli.open_listener import open_listener


def refuse(host: str, port: int) -> str:
    with pytest.raises(click.ClickException) as refusal:
        open_listener(host, port)
    return refusal.value.message


def test_a_port_that_another_program_uses_is_taken() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert refuse("127.0.0.1", port) == f"port {port} of 127.0.0.1 is taken; use --port"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_a_host_without_an_address_is_named(host: str) -> None:
    message = refuse(host, 8001)
    assert message.startswith(f"{host!r} is not an address of this machine")
    assert message.endswith("use --host")


def test_an_address_of_another_machine_is_not_called_taken() -> None:
    message = refuse("192.0.2.7", 8001)
    assert message.startswith("'192.0.2.7' is not an address of this machine")
    assert "taken" not in message


def test_a_port_without_permission_is_not_called_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_server(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", create_server)
    assert refuse("127.0.0.1", 80) == "port 80 of 127.0.0.1 cannot be opened (Permission denied); use --port"
