"""JSON whose fields are attributes too, so that what reads the OpenAI client's objects reads a bare body."""

import json
from typing import Any

from rollbus.schemas.ids import parse_json


class Attributes(dict[str, Any]):
    """A JSON object; a field that is missing is an AttributeError, as on the client's objects."""

    def __getattr__(self, name: str) -> Any:
        """Return a field."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field."""
        self[name] = value

    @property
    def model_extra(self) -> "Attributes":
        """Fields that the OpenAI API does not know are found here, and taken out here."""
        return self


def parse(data: bytes | str) -> Any:
    """Return JSON with objects as `Attributes`; raises ValueError where it is not JSON."""
    return parse_json(data, object_hook=Attributes)


def dump(value: Any) -> bytes:
    """Return JSON without spaces, as the servers write it; halves of a character, as texts that were cut have them,
    stay the escapes that they came as.
    """
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
