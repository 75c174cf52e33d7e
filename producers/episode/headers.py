"""The headers by which another process joins an episode.

`Episode.headers` writes them, and `Recorder.attach` reads them.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rollbus.producers.turns.answer import text_of

EPISODE_HEADER = "rollbus-episode"
"""The episode's id."""
STARTED_HEADER = "rollbus-started"
"""When the episode began, in milliseconds."""
FUNCTION_HEADER = "rollbus-function"
"""The part of the agent that makes the request."""
NOT_SAMPLED = {"rollbus-sampled": "0"}
"""Sent instead for an episode that is not recorded: what another process does for it is not recorded either."""


def is_unsampled(headers: Mapping[str, Any]) -> bool:
    """Say whether headers (with names in lower case) come from an episode that is not recorded."""
    return all(headers.get(name) == value for name, value in NOT_SAMPLED.items())


def header_text(value: Any) -> str:
    """Return an id or a name as ASCII that an HTTP header carries unchanged, percent-encoded; `unquote` undoes it."""
    return quote(text_of(str(value)) or "", safe="/:@")
