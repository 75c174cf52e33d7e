"""The demo's choices → one settings file, as for any other run of rollbus; it decides what learns, and how."""

import os
from pathlib import Path
from typing import Any

import yaml

from rollbus.local.process.settings import HOST, StackSettings
from rollbus.schemas.credentials import make_secrets
from rollbus.settings import Settings

NAMESPACE = "demo."
RUN = "tictactoe"
MODEL = "agent"
GROUP_SIZE = 8
GROUPS_PER_STEP = 16
"""128 episodes a step. 32 groups learn more steadily and take twice the time to show it."""
LEARNING_RATE = 4e-4
"""At 1e-3 the policy is certain after 3,000 episodes and illegal moves come back; at 3e-4 it only takes longer."""
ENTROPY_BONUS = 0.02
"""A bonus of 0.2 spreads probability over tokens that are not cells."""


def settings_document(stack: StackSettings, base_model: Path) -> dict[str, Any]:
    """Return the content of the settings file."""
    return {
        "namespace": NAMESPACE,
        "kafka": {"bootstrap_servers": stack.bootstrap_servers},
        "runs": [
            {
                "run_id": RUN,
                "model": MODEL,
                "filter": {"tasks": ["tictactoe"]},
                "grouping": {
                    "strategy": "by_example",
                    "group_size": GROUP_SIZE,
                    "min_group_size": GROUP_SIZE // 2,
                    "window_ms": 60_000,
                    "advantage": "mean_std",
                },
                "curriculum": {"mode": "off"},
                "batching": {
                    "groups_per_step": GROUPS_PER_STEP,
                    "batches_ahead": 1,
                    "max_waiting_groups": 2 * GROUPS_PER_STEP,
                    "max_off_policy_steps": 4,
                },
            }
        ],
        "trainer": {
            "backend": {"type": "art-server", "url": stack.art_url},
            "train": {
                "learning_rate": LEARNING_RATE,
                "loss": "cispo",
                "ratio_max": 5.0,
                "entropy_bonus": ENTROPY_BONUS,
                "max_grad_norm": 1.0,
            },
            "poll_interval_s": 0.1,
        },
        "art_server": {"model": MODEL, "base_model": str(base_model.resolve())},
        "clickhouse": {"host": HOST, "port": stack.clickhouse_port},
        "stack": {
            "data_dir": str(stack.data_dir.resolve()),
            "kafka_port": stack.kafka_port,
            "kafka_controller_port": stack.kafka_controller_port,
            "clickhouse_port": stack.clickhouse_port,
            "art_port": stack.art_port,
            "model_port": stack.model_port,
        },
    }


def write_settings(path: Path, stack: StackSettings, base_model: Path) -> Settings:
    """Write the file and return the settings that every process will read from it."""
    document = settings_document(stack, base_model)
    make_secrets(stack.secrets_dir)
    settings = Settings.model_validate(document).with_credentials(os.environ)
    path.write_text("# Written by `rollbus demo`.\n" + yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return settings
