"""The settings of a validation → what plays it: the user's agent is loaded and the dataset read here, at the start."""

from pathlib import Path

from rollbus.trainer.evaluation_agents import agent_of
from rollbus.trainer.playing import PlayLimits
from rollbus.trainer.settings import ArtServerBackend, TrainerSettings
from rollbus.trainer.validating import Validation
from rollbus.trainer.validation import ValidationRule, ValidationSet, read_examples


def validation_of(settings: TrainerSettings) -> Validation | None:
    """Return the validation of a trainer, if it has one; ConfigurationError where agent or dataset cannot be used."""
    chosen = settings.validation
    if chosen is None:
        return None
    examples = read_examples(chosen.dataset) if chosen.dataset else ()
    key = chosen.api_key
    if key is None and isinstance(settings.backend, ArtServerBackend):
        key = settings.backend.token
    return Validation(
        agent=agent_of(chosen.agent, folder=Path.cwd()),
        set=ValidationSet(chosen.name, chosen.episodes or len(examples), chosen.seed, examples),
        rule=ValidationRule(chosen.interval_steps, chosen.wait),
        limits=PlayLimits(chosen.concurrency, chosen.timeout_s, chosen.tries),
        base_url=chosen.base_url,
        api_key=key.get_secret_value() if key else "none",
        options=chosen.options,
    )
