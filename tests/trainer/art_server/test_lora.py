"""Adapters: the base model at first, trained alone, stored as PEFT does, and served with shared frozen weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import is_complete, save_checkpoint
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.learner.update import Learner
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.backends.model_settings import LoraConfig
from rollbus.trainer.train_config import TrainConfig
from tests.models import create_model
from tests.sequences import three_answers

CONFIG = TrainConfig(learning_rate=1e-2)
LORA = LoraConfig(rank=4, alpha=8.0)
TOKENS = torch.tensor([[5, 60, 70, 80, 90, 100]])


def make_loader(base_model: Path, lora: LoraConfig | None = LORA) -> ModelLoader:
    return ModelLoader(read_config(base_model), lora=lora, base=base_model)


def compute_logits(model: Any) -> Tensor:
    with torch.no_grad():
        return head(model, trunk(model, TOKENS))


def start_learner(base_model: Path, folder: Path) -> tuple[Learner, Path]:
    """A learner at version 0, and the folder of its checkpoint."""
    learner = Learner(read_config(base_model), loader=make_loader(base_model))
    save_version(learner, base_model, folder / "0000")
    learner.start_from(0, folder / "0000")
    return learner, folder / "0000"


def save_version(learner: Learner, base_model: Path, target: Path) -> None:
    save_checkpoint(
        target,
        learner.model,
        learner.config,
        base=base_model,
        provenance={"version": int(target.name)},
        masters=learner.masters.named,
        optimizer=learner.optimizer,
        lora=LORA,
    )


def test_the_first_version_is_the_base_model_exactly(base_model: Path, tmp_path: Path) -> None:
    learner, checkpoint = start_learner(base_model, tmp_path)
    plain = make_loader(base_model, None).load(base_model)
    assert torch.equal(compute_logits(make_loader(base_model).load(checkpoint)), compute_logits(plain))
    assert is_complete(checkpoint)
    assert not (checkpoint / "model.safetensors").exists()
    assert sum(weight.numel() for weight in learner.masters.named.values()) < 0.2 * sum(
        p.numel() for p in plain.parameters()
    )


def test_a_step_moves_the_adapters_and_nothing_else(base_model: Path, tmp_path: Path) -> None:
    learner, _ = start_learner(base_model, tmp_path)
    frozen = {name: p.clone() for name, p in learner.model.named_parameters() if not p.requires_grad}
    before = {name: p.detach().clone() for name, p in learner.masters.named.items()}
    for _ in range(2):  # A has no gradient while B is zero
        learner.step(three_answers(), CONFIG)
    assert all(torch.equal(p, frozen[name]) for name, p in learner.model.named_parameters() if name in frozen)
    assert all(not torch.equal(p, before[name]) for name, p in learner.masters.named.items())
    assert all(".lora_" in name for name in before)


def test_versions_share_the_frozen_weights_and_nothing_else(base_model: Path, tmp_path: Path) -> None:
    learner, checkpoint = start_learner(base_model, tmp_path)
    learner.step(three_answers(), CONFIG)
    save_version(learner, base_model, tmp_path / "0001")
    serving = make_loader(base_model)
    models = [serving.load(checkpoint), serving.load(tmp_path / "0001")]
    for (name, a), (_, b) in zip(models[0].named_parameters(), models[1].named_parameters(), strict=True):
        assert (a is b) == (".lora_" not in name), name
    assert not torch.equal(compute_logits(models[0]), compute_logits(models[1]))


def test_a_checkpoint_of_the_other_kind_or_shape_is_refused_with_what_to_do(
    base_model: Path, tmp_path: Path, tokenizer: Any
) -> None:
    _, checkpoint = start_learner(base_model, tmp_path)
    with pytest.raises(ConfigurationError, match="take `lora` out"):
        make_loader(base_model).load(base_model)
    with pytest.raises(ConfigurationError, match="no weights"):
        make_loader(base_model, None).load(checkpoint)
    with pytest.raises(ConfigurationError, match="were `base_model` or `lora` changed"):
        make_loader(base_model, LoraConfig(rank=2, alpha=8.0)).load(checkpoint)
    with pytest.raises(ConfigurationError, match=r"trained with `lora: \{alpha: 8\}`, and the settings say 32"):
        make_loader(base_model, LoraConfig(rank=4, alpha=32.0)).load(checkpoint)
    one_layer_model = create_model(tmp_path / "other", ModelConfig(layers=1), tokenizer, seed=1)
    with pytest.raises(ConfigurationError, match="do not fit"):
        make_loader(base_model, None).load(one_layer_model)
