"""Base models for tests: made with fresh weights, and read back."""

from pathlib import Path
from typing import Any

from torch import nn

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import save_model
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from rollbus.trainer.art_server.model.model import build_model, initialize


def create_model(directory: Path, config: ModelConfig, tokenizer: Any, seed: int) -> Path:
    """Write a complete base model with fresh weights: config, tokenizer and safetensors."""
    if len(tokenizer) > config.vocabulary:
        raise ConfigurationError(
            f"tokenizer has {len(tokenizer)} entries, the model's vocabulary only {config.vocabulary}"
        )
    model = build_model(config)
    initialize(model, seed)
    save_model(directory, model, config, tokenizer)
    return directory


def load_model(directory: Path, *, max_tokens: int | None = None) -> tuple[nn.Module, ModelConfig]:
    """The network of a base model or checkpoint directory."""
    config = read_config(directory, max_tokens=max_tokens)
    return ModelLoader(config).load(directory), config
