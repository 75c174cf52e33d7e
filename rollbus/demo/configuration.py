"""A job's settings and the stack's addresses → one settings file, as for any other run of rollbus."""

import os
from pathlib import Path
from typing import Any

import yaml

from rollbus.demo.job import MODEL, NAMESPACE, DemoJob
from rollbus.runtime.credentials import make_secrets
from rollbus.settings import Settings
from rollbus.stack_settings import HOST, StackSettings

SINK_LINGER_MS = 8000
"""Few large inserts leave ClickHouse's share of the cores to the model."""
WORKER = {"event_partitions": 2, "linger_ms": 500}
"""Few large transactions, likewise: by default worker and Kafka took half of a core for 8 attempts a second."""


def settings_document(job: DemoJob, stack: StackSettings, base_model: Path) -> dict[str, Any]:
    """Return the content of the settings file."""
    document = job.settings()
    trainer, art_server = document.pop("trainer"), document.pop("art_server", {})
    return {
        "namespace": NAMESPACE,
        "kafka": {"bootstrap_servers": stack.bootstrap_servers},
        **document,
        "trainer": {
            "backend": {"type": "art-server", "url": stack.art_url},
            **trainer,
        },
        "art_server": {"model": MODEL, "base_model": str(base_model.resolve()), **art_server},
        "worker": WORKER,
        "sink": {"linger_ms": SINK_LINGER_MS},
        "clickhouse": {"host": HOST, "port": stack.clickhouse_port},
        "stack": {
            "data_dir": str(stack.data_dir.resolve()),
            "kafka_port": stack.kafka_port,
            "clickhouse_port": stack.clickhouse_port,
            "art_port": stack.art_port,
            "model_port": stack.model_port,
        },
    }


def write_settings(path: Path, job: DemoJob, stack: StackSettings, base_model: Path) -> Settings:
    """Write the file and return the settings that every process will read from it."""
    document = settings_document(job, stack, base_model)
    make_secrets(stack.secrets_dir)
    settings = Settings.model_validate(document).with_credentials(os.environ)
    path.write_text("# Written by `rollbus demo`.\n" + yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return settings
