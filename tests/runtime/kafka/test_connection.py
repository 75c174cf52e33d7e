"""The connection is whole or refused, and its password stays out of sight."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError


def test_plain_connection_needs_only_addresses() -> None:
    assert KafkaConnection(bootstrap_servers="b:1").client_options() == {
        "bootstrap_servers": "b:1",
        "security_protocol": "PLAINTEXT",
    }


def test_sasl_without_credentials_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs username, and password or password_file"):
        KafkaConnection(security_protocol="SASL_SSL", username="u")


def test_sasl_over_tls_carries_both() -> None:
    connection = KafkaConnection(security_protocol="SASL_SSL", username="u", password=SecretStr("hunter2"))
    options = connection.client_options()
    assert options["sasl_plain_password"] == "hunter2"
    assert options["ssl_context"].check_hostname
    assert "hunter2" not in repr(connection)


def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        KafkaConnection(security_protocol="SSL", ssl_ca_file=tmp_path / "absent.pem").client_options()


class KafkaConnectionError(Exception):
    """Named as the client's error is."""


def test_a_broker_that_cannot_be_reached_is_named_with_what_to_look_at() -> None:
    message = str(KafkaConnection(bootstrap_servers="b:1").unavailable(KafkaConnectionError("[(…, AF_INET: 2)]")))
    assert message.startswith("Kafka at b:1 cannot be reached; does it run (`rollbus status`)")
    assert "AF_INET" not in message


def test_an_unknown_broker_error_is_kept_with_a_hint_at_credentials() -> None:
    connection = KafkaConnection(
        bootstrap_servers="b:1", security_protocol="SASL_PLAINTEXT", username="u", password=SecretStr("hunter2")
    )
    message = str(connection.unavailable(ValueError("strange")))
    assert "ValueError('strange')" in message
    assert "password of user u right" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "servers", ["", "b:abc", "b:99999", "b:0", "b:", "http://b:9092", "a:1,", "a:1;b:2", "a 1", "[::1", "a:1,b:x", ":1"]
)
def test_invalid_addresses_are_refused(servers: str) -> None:
    with pytest.raises(ValidationError, match="host:port"):
        KafkaConnection(bootstrap_servers=servers)


@pytest.mark.parametrize("servers", ["b", "b:9092", " a:1, b-2.x_y:65535 ", "[::1]:9092", "::1", "10.0.0.1:9092,b:1"])
def test_addresses_that_the_client_understands_pass(servers: str) -> None:
    assert KafkaConnection(bootstrap_servers=servers).bootstrap_servers == servers


def test_a_password_may_be_in_a_file_which_is_read_when_a_client_is_made(tmp_path: Path) -> None:
    file = tmp_path / "password"
    connection = KafkaConnection(security_protocol="SASL_PLAINTEXT", username="u", password_file=file)
    with pytest.raises(ConfigurationError, match=r"password_file .* cannot be read"):
        connection.client_options()
    file.write_text("hunter2\n")
    assert connection.client_options()["sasl_plain_password"] == "hunter2"
    with pytest.raises(ValidationError, match="password or password_file, not both"):
        KafkaConnection(username="u", password=SecretStr("hunter2"), password_file=file)
