"""How every process reaches the broker: addresses, TLS and SASL, once for producers, workers, sink and trainer.

`client_options()` gives the keyword arguments that every aiokafka client and producer takes; `unavailable()` turns what
such a client raises into our error.
"""

import re
import ssl
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.limits import FRAMING_BYTES, LEAST_RECORD_BYTES, MAX_RECORD_BYTES, MOST_RECORD_BYTES

_ADDRESS = re.compile(
    r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:;/\[\]]+)(?::(\d{1,5}))?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"
)
"""A host or an IPv6 address, and mostly a port; the client fails on anything else with an error of Python's."""


class KafkaConnection(BaseModel):
    """Address and credentials of a Kafka cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_servers: str = "127.0.0.1:9092"
    """Comma-separated host:port."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    """A file that holds the password, such as a container's secret."""
    ssl_ca_file: Path | None = None
    """Certificates to trust; the system's own without it."""
    ssl_certificate_file: Path | None = None
    """The client's certificate, where the broker asks for one."""
    ssl_key_file: Path | None = None
    max_record_bytes: int = Field(default=MAX_RECORD_BYTES, ge=LEAST_RECORD_BYTES, le=MOST_RECORD_BYTES)
    """Largest key and value of a record before compression; what is larger is dropped and counted as `too_large`. The
    same for all processes of a namespace."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses_can_be_read(cls, servers: str) -> str:
        for server in servers.split(","):
            match = _ADDRESS.fullmatch(server.strip())
            if match is None or (match[1] is not None and not 0 < int(match[1]) < 65536):
                raise ValueError(f"{server.strip()!r} is not host:port; several stand with commas between")
        return servers

    @model_validator(mode="after")
    def _credentials_are_whole(self) -> "KafkaConnection":
        if self.password and self.password_file:
            raise ValueError("give password or password_file, not both")
        if self.security_protocol.startswith("SASL") and not (self.username and (self.password or self.password_file)):
            raise ValueError(
                f"security_protocol {self.security_protocol} needs username, and password or password_file"
            )
        if self.ssl_key_file and not self.ssl_certificate_file:
            raise ValueError("ssl_key_file needs ssl_certificate_file")
        return self

    @property
    def max_message_bytes(self) -> int:
        """What a topic must take, and a client's largest request."""
        return self.max_record_bytes + FRAMING_BYTES

    def client_options(self) -> dict[str, Any]:
        """Return aiokafka's keyword arguments; raises ConfigurationError for files that cannot be read."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self._read_password(),
            }
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = self._ssl_context()
        return options

    def unavailable(self, error: BaseException, what: str = "") -> UnavailableError:
        """Return our error for a client's: what was being done, which broker, what it said, and what to look at."""
        problem = f"Kafka at {self.bootstrap_servers} {_describe_failure(error)}; {self._remedy()}"
        return UnavailableError(f"{what}: {problem}" if what else problem)

    def _remedy(self) -> str:
        """Say what to look at: the client tells a refused password from no answer in its log only."""
        if self.security_protocol == "PLAINTEXT":
            return "does it run (`rollbus status`), and is `kafka: bootstrap_servers:` its address?"
        user = f", and the password of user {self.username} right" if self.username else ""
        return (
            f"does it run, and is security_protocol {self.security_protocol}{user}? The line logged before says which"
        )

    def _read_password(self) -> str:
        if self.password_file is None:
            return self.password.get_secret_value() if self.password else ""
        try:
            return self.password_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"Kafka's password_file {self.password_file} cannot be read: {error}") from error

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca_file)
            if self.ssl_certificate_file:
                context.load_cert_chain(self.ssl_certificate_file, self.ssl_key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"TLS certificates for Kafka cannot be loaded: {error}") from error
        return context


def _describe_failure(error: BaseException) -> str:
    """Say what a client's error means, after the word Kafka."""
    if type(error).__name__ == "KafkaConnectionError":  # the client's class, which is not imported here
        return "cannot be reached"
    return f"does not answer as it should: {error!r}"
