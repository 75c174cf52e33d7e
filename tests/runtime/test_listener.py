"""A port that cannot be opened is refused with its real reason and the setting that helps."""

import errno
import socket

import pytest

from rollbus.runtime.health.heart import Heart, Report
from rollbus.runtime.http.listener import open_listener
from rollbus.schemas.errors import ConfigurationError
from tests.health.test_reporter import away


def refuse(host: str, port: int) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        open_listener(host, port)
    return str(refusal.value)


def test_a_port_that_another_program_uses_is_taken() -> None:
    """A listener holds its port from its opening on: one that is only bound could be bound again."""
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert refuse("127.0.0.1", port) == (
            f"port {port} of 127.0.0.1 is taken; stop what listens there, or change --port"
        )
    open_listener("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_a_host_without_an_address_is_named(host: str) -> None:
    message = refuse(host, 8001)
    assert f"{host!r} is not an address of this machine" in message
    assert message.endswith("change --host")


def test_an_address_of_another_machine_is_not_called_taken() -> None:
    message = refuse("192.0.2.7", 8001)
    assert "'192.0.2.7' is not an address of this machine" in message
    assert "taken" not in message


def test_a_port_without_permission_is_not_called_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert refuse("127.0.0.1", 80) == "port 80 of 127.0.0.1 cannot be opened (Permission denied); change --port"


def test_answers_of_a_listener_wait_for_no_acknowledgement() -> None:
    """asyncio turns Nagle's algorithm off where a socket names its protocol."""
    with open_listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def test_metrics_at_an_address_of_another_machine_name_their_setting() -> None:
    heart = Heart(away(), "t.", "sink", "0.1.0", metrics_host="192.0.2.7", metrics_port=9400)
    words = (
        r"port 9400 of 192\.0\.2\.7 for /metrics: '192\.0\.2\.7' is not an address .*; change `health: metrics_host:`"
    )
    with pytest.raises(ConfigurationError, match=words):
        async with heart.beating(Report):
            pytest.fail("it started all the same")
