"""The settings of the local stack: its data folder and ports. Everything listens on loopback."""

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from rollbus.runtime.credentials import secrets_folder

HOST = "127.0.0.1"
STARTED_PORTS = ("kafka_port", "clickhouse_port")
"""Ports of what `rollbus up` always starts; art-server may be left out, or run elsewhere."""

MOST_PORTS = 65_536
Port = Annotated[int, Field(gt=0, lt=MOST_PORTS)]
_PORT: TypeAdapter[int] = TypeAdapter(Port)

KAFKA_PORT = 9092
FOLLOWING_PORTS = ("clickhouse_port", "art_port", "model_port")
"""Where Kafka's port is another than usual, those that are not named come after it, in this order."""


class StackSection(BaseModel):
    """Folder and ports of one local stack; a second one on a machine needs another `kafka_port`, and a folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Path(".rollbus")
    kafka_port: Port = KAFKA_PORT
    """With another port than this, the three below that are not named are the three after it."""
    clickhouse_port: Port = 8123
    art_port: Port = 7623
    """Control routes of art-server."""
    model_port: Port = 8000
    """OpenAI-compatible endpoint of art-server."""

    @model_validator(mode="before")
    @classmethod
    def _follow_kafka_port(cls, values: Any) -> Any:
        try:
            first = _PORT.validate_python(values.get("kafka_port", KAFKA_PORT) if isinstance(values, dict) else None)
        except ValidationError:
            return values  # one that is not a port is one mistake, and not five
        if first == KAFKA_PORT:
            return values
        return {**{name: first + place for place, name in enumerate(FOLLOWING_PORTS, start=1)}, **values}

    @model_validator(mode="after")
    def _require_different_ports(self) -> "StackSection":
        """Refuse a port that is given twice: Kafka would end with a long Java trace."""
        ports = Counter(getattr(self, name) for name in STARTED_PORTS)
        if twice := sorted(port for port, count in ports.items() if count > 1):
            raise ValueError(f"port {twice[0]} is given to several services; {', '.join(STARTED_PORTS)} must differ")
        return self

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    @property
    def art_url(self) -> str:
        return f"http://{HOST}:{self.art_port}"

    @property
    def model_url(self) -> str:
        return f"http://{HOST}:{self.model_port}/v1"


class StackSettings(StackSection):
    """What `rollbus.local` takes."""

    insecure: bool = False
    """True: no passwords and no token."""

    @property
    def secrets_dir(self) -> Path:
        """Holds the token and the passwords."""
        return secrets_folder(self.data_dir, os.environ)

    @property
    def run_dir(self) -> Path:
        """Holds a file for each started process, and the lock."""
        return self.data_dir / "run"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def kafka_dir(self) -> Path:
        return self.data_dir / "kafka"

    @property
    def clickhouse_dir(self) -> Path:
        return self.data_dir / "clickhouse"
