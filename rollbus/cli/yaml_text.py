"""YAML that a user gives a command, in a file or as a value."""

from pathlib import Path
from typing import Any

import yaml

from rollbus.schemas.errors import ConfigurationError

NOT_READ = (yaml.YAMLError, ValueError, RecursionError)
"""What a text raises that is not YAML: also one with a date that there is not, or nested too deep."""


def read_yaml(path: Path) -> Any:
    """Return what stands in a file; raises ConfigurationError where it cannot be read, or is no YAML."""
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, *NOT_READ) as error:
        raise ConfigurationError(f"{path}: {error}") from error
