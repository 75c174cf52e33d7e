"""The connection is whole or refused, and its password stays out of sight."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.kafka_connection import KafkaConnection


def test_plain_connection_needs_only_addresses() -> None:
    assert KafkaConnection(bootstrap_servers="b:1").client_options() == {
        "bootstrap_servers": "b:1",
        "security_protocol": "PLAINTEXT",
    }


def test_sasl_without_credentials_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs username and password"):
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
