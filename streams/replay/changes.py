"""Some values of a configuration section otherwise than in force: each run keeps the rest of its own."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from rollbus.schemas.config import Config
from rollbus.schemas.errors import ConfigurationError

C = TypeVar("C", bound=Config)


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of a section's settings with other values."""

    values: tuple[tuple[str, Any], ...]

    def made_to(self, section: C, run_id: str) -> C:
        """Return a run's section with these values; raises ConfigurationError where they do not go with the rest."""
        try:
            return type(section).model_validate(section.model_dump(mode="json") | dict(self.values))
        except ValidationError as error:
            changes = ", ".join(f"{name}={value}" for name, value in self.values)
            mistakes = "; ".join(one["msg"].removeprefix("Value error, ") for one in error.errors())
            raise ConfigurationError(f"run {run_id} cannot have {changes}: {mistakes}") from error
