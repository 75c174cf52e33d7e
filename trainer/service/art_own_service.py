"""ART's own model service, as `ArtLocal` sees ours: checkpoints and names; serving and training are ART's.

Its adapters are checkpoints like any other once `rollbus.json` names their batch. One that a crash left without is
removed at the next start, so its batch trains again from the version before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.service.art_service import ServiceSettings, TorchService
from rollbus.trainer.service.checkpoint import PROVENANCE
from rollbus.trainer.service.model import SequenceLimits, read_limits
from rollbus.trainer.service.tokenizer import load_tokenizer


class ArtOwnService:
    """What is known of it outside of ART."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.config: SequenceLimits = read_limits(settings.base_model, max_tokens=settings.options.max_tokens)
        self.tokenizer = load_tokenizer(settings.base_model)
        self.store = TorchService.open_store(settings)
        self.base_url: str | None = None
        self.serving = 0

    def loaded(self) -> tuple[int, ...]:
        """The newest; ART keeps older adapters only while it needs them."""
        return tuple(self.store.numbers()[-1:])

    def serve(self, version: int) -> None:
        """RejectedError for any but the newest: ART trains from there and serves that."""
        newest = self.store.numbers()[-1]
        if version != newest:
            raise RejectedError(
                f"ART's own service trains and serves its newest version, {newest}, and cannot go back to {version}; "
                "stop the server, move the directories above it away, and start it again"
            )
        self.serving = version

    def note(self, version: int, provenance: Mapping[str, Any]) -> None:
        """Name what made a version: until then it does not count."""
        path = self.store.path(version) / PROVENANCE
        partial = path.with_suffix(".tmp")
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps(dict(provenance), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        _sync(path.parent)

    def close(self) -> None:
        """ART closes its own."""


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
