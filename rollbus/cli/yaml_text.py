"""YAML that a user gives a command, in a file or as a value."""

from pathlib import Path
from typing import Any

import yaml

from rollbus.schemas.errors import ConfigurationError
from rollbus.settings_file import parse_yaml, read_text

YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)
"""The parser's errors: for a text that is not YAML, has an impossible date, or is nested too deep or too large."""


def read_yaml(path: Path) -> Any:
    """Return the content of a file; raises ConfigurationError if it cannot be read or is not YAML."""
    try:
        return parse_yaml(read_text(path))
    except (OSError, *YAML_ERRORS) as error:
        raise ConfigurationError(f"{path}: {error}") from error
