"""docker-compose.yml, alone or under other files, as Compose reads them together."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BASE, SASL = "docker-compose.yml", "docker-compose.sasl.yml"
SECRETS = "/run/secrets"
"""Where containers find them."""


def read_compose(*names: str) -> dict[str, Any]:
    """Return the files in one: mappings are merged, lists of secrets appended, and the rest is the last one's."""
    merged: dict[str, Any] = {}
    for name in names:
        merged = _merge(merged, yaml.safe_load((ROOT / name).read_text()))
    return merged


def _merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merge(before, value)
        else:
            merged[key] = [*before, *value] if key == "secrets" and before else value
    return merged


def names_of_secrets(service: dict[str, Any]) -> dict[str, str]:
    """Return which secret a container finds under each name."""
    given = [{"source": secret} if isinstance(secret, str) else secret for secret in service.get("secrets", [])]
    return {secret.get("target", secret["source"]): secret["source"] for secret in given}


def broker_settings(environment: dict[str, str]) -> dict[str, str]:
    """Return what Kafka's image makes of its variables; `$$` is Compose's own way to write `$`."""
    ours = {"KAFKA_HEAP_OPTS"}
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value.replace("$$", "$")
        for name, value in environment.items()
        if name.startswith("KAFKA_") and name not in ours
    }
