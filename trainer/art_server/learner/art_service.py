"""ART's own model service, with the interface of ours: checkpoints and names; ART serves and trains.

Its adapters are checkpoints like any other once `rollbus.json` names their batch. The next start removes one that a
crash left without, so its batch trains again from the version before.
"""

from collections.abc import Mapping
from typing import Any

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.checkpoints.checkpoint import PROVENANCE, write_json
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
from rollbus.trainer.art_server.learner.torch_service import TorchService
from rollbus.trainer.art_server.model.config import SequenceLimits, read_limits
from rollbus.trainer.backends.model_settings import ServiceSettings


class ArtOwnService:
    """What this project knows about it."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.config: SequenceLimits = read_limits(settings.base_model, max_tokens=settings.options.max_tokens)
        self.tokenizer = load_tokenizer(settings.base_model)
        self.store = TorchService.open_store(settings)
        self.base_url: str | None = None
        self.serving = 0
        self.canary: int | None = None
        """ART's own engine gives no version a share."""

    def loaded(self) -> tuple[int, ...]:
        """The newest; ART keeps older adapters only while it needs them."""
        return tuple(self.store.numbers()[-1:])

    def serve(self, version: int) -> None:
        """Serve the newest version; RejectedError for any other, since ART trains and serves only that."""
        newest = self.store.numbers()[-1]
        if version != newest:
            raise RejectedError(
                f"ART's own service trains and serves its newest version, {newest}, and cannot go back to {version}; "
                "stop the server, move the directories above it away, and start it again"
            )
        self.serving = version

    def note(self, version: int, provenance: Mapping[str, Any]) -> None:
        """Write down what made a version: until then it does not count."""
        write_json(self.store.path(version) / PROVENANCE, provenance)

    def close(self) -> None:
        """ART closes its own."""
