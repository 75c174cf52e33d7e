"""The settings of the local stack: its data folder and ports. Everything listens on loopback."""

from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class StackSettings:
    """Folder and ports of one local stack; two stacks need different folders and ports."""

    data_dir: Path = field(default_factory=lambda: Path(".rollbus"))
    kafka_port: int = 9092
    kafka_controller_port: int = 9093
    """Where the broker's own controller listens; no client uses it."""
    clickhouse_port: int = 8123
    art_port: int = 7623
    """Control routes of art-server."""
    model_port: int = 8000
    """OpenAI-compatible endpoint of art-server."""

    @property
    def owner_key_file(self) -> Path:
        """Holds the key that signs ticks and configurations."""
        return self.data_dir / "owner.key"

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

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    @property
    def clickhouse_url(self) -> str:
        return f"http://{HOST}:{self.clickhouse_port}"

    @property
    def art_url(self) -> str:
        return f"http://{HOST}:{self.art_port}"

    @property
    def model_url(self) -> str:
        return f"http://{HOST}:{self.model_port}/v1"
