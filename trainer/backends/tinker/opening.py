"""Settings → a started backend over a real service, driven by the trainer."""

import json
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.model_settings import ServiceSettings
from rollbus.trainer.backends.tinker.backend import TinkerBackend, TrainedModel
from rollbus.trainer.backends.tinker.sdk import SdkService

TOKENIZER = "tokenizer.json"


async def open_tinker(settings: ServiceSettings) -> TinkerBackend:
    """Return a backend that has found its versions; they are those of an art-server with these settings."""
    if settings.tinker is None:
        raise ConfigurationError("backend tinker needs `art_server: tinker:`, the service that trains")
    access, vocabulary = settings.tinker, count_token_ids(settings.base_model)
    trained = TrainedModel(settings.model, access.base_model, access.lora_rank, vocabulary, settings.options.max_tokens)
    backend = TinkerBackend(trained, SdkService(access), settings.tinker_directory, settings.retention)
    try:
        await backend.start()
    except BaseException:
        await backend.close()
        raise
    return backend


def count_token_ids(folder: Path) -> int:
    """Return the highest token id of a tokenizer.json plus one; ConfigurationError if there is none to read."""
    path = folder / TOKENIZER
    try:
        document = json.loads(path.read_bytes())
        vocabulary = document["model"]["vocab"]
        highest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
        return int(max([highest, *(token["id"] for token in document.get("added_tokens") or [])])) + 1
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as a tokenizer ({type(error).__name__}: {error}); `art_server: base_model:` is the "
            "folder with the base model's tokenizer.json"
        ) from error
