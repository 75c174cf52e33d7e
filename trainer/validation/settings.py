"""The settings of a validation → its agent and its dataset, loaded at the start."""

from pathlib import Path

from rollbus.trainer.settings import ArtServerBackend, TrainerSettings
from rollbus.trainer.validation.agents import load_agent
from rollbus.trainer.validation.validating import Validation
from rollbus.trainer.validation.validation import ValidationSet, read_examples


def load_validation(settings: TrainerSettings) -> Validation | None:
    """Return the validation of a trainer, if it has one; ConfigurationError if agent or dataset cannot be used."""
    chosen = settings.validation
    if chosen is None:
        return None
    examples = read_examples(chosen.dataset) if chosen.dataset else ()
    key = chosen.api_key
    if key is None and isinstance(settings.backend, ArtServerBackend):
        key = settings.backend.token
    return Validation(
        agent=load_agent(chosen.agent, folder=Path.cwd()),
        set=ValidationSet(chosen.name, chosen.episodes or len(examples), chosen.seed, examples),
        settings=chosen,
        api_key=key.get_secret_value() if key else "none",
    )
