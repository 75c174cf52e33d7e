"""Settings → a started backend over a real service."""

import json
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.tinker.backend import TinkerBackend, TrainedModel
from rollbus.trainer.backends.tinker.sdk import SdkService
from rollbus.trainer.backends.tinker.settings import TinkerAccess

TOKENIZER = "tokenizer.json"


async def open_tinker(
    access: TinkerAccess,
    *,
    model: str,
    tokenizer: Path,
    directory: Path,
    max_tokens: int | None,
    retention: Retention,
) -> TinkerBackend:
    """Return a backend that has found its versions; its folder is `directory / model`."""
    trained = TrainedModel(model, access.base_model, access.lora_rank, count_token_ids(tokenizer), max_tokens)
    backend = TinkerBackend(trained, SdkService(access), directory / model, retention)
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
            f"{path} cannot be read as a tokenizer ({type(error).__name__}: {error}); `tokenizer:` is the folder with "
            "the base model's tokenizer.json"
        ) from error
