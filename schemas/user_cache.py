"""Where a user's machine keeps what was fetched once for all projects: models, Kafka's jars."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Return rollbus's folder in the user's cache; XDG_CACHE_HOME moves it. It need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbus"
