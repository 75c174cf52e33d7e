"""Networks of one base model, from its checkpoints: at the precision asked for, and with adapters if there are any.

With adapters every network shares the frozen weights of the first, so a further version costs its adapters only.
"""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import read_adapter, read_weights
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.inert_files import WEIGHTS
from rollbus.trainer.art_server.model.lora import ADAPTER, freeze_all_but_adapters, initialize_adapters, is_adapter
from rollbus.trainer.art_server.model.memory_limits import ran_out_of_memory
from rollbus.trainer.art_server.model.model import build_model
from rollbus.trainer.art_server.model.precision import set_precision
from rollbus.trainer.backends.model_settings import LoraConfig, Precision

ADAPTER_SEED = 0


class ModelLoader:
    """Builds and fills networks; `base` is needed only with adapters."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        precision: Precision = "float32",
        lora: LoraConfig | None = None,
        base: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.config, self.precision, self.lora, self.device = config, precision, lora, _usable_device(device)
        self._base = base
        self._frozen: nn.Module | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the layers, and so of keys and values."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def fresh(self) -> nn.Module:
        """Return a network to train: with weights not yet set, or the base model's with adapters that add nothing."""
        if self.lora is None:
            model = build_model(self.config)
            set_precision(model, self.precision)
            return model.to(self.device)
        if self._frozen is None:
            self._frozen = self._build_on_base(self.lora)
        shared: dict[int, Tensor] = {
            id(parameter): parameter for name, parameter in self._frozen.named_parameters() if not is_adapter(name)
        }
        shared |= {id(buffer): buffer for buffer in self._frozen.buffers()}
        return copy.deepcopy(self._frozen, shared)

    def trained_weights(self, checkpoint: Path) -> dict[str, Tensor]:
        """Return a checkpoint's weights for this network, in float32. ConfigurationError for another kind."""
        if self.lora is None:
            return read_weights(checkpoint, self.config)
        if not (checkpoint / ADAPTER).exists() and (checkpoint / WEIGHTS).exists():
            raise ConfigurationError(
                f"checkpoint {checkpoint} holds all weights and no adapter; take `lora` out of the settings, or give "
                "this run another directory"
            )
        return read_adapter(checkpoint, self.lora, self.config)

    def load(self, checkpoint: Path) -> nn.Module:
        """Return a network with the weights of this checkpoint."""
        model = self.fresh()
        missing, unexpected = model.load_state_dict(self._read_fitting(checkpoint, model), strict=False)
        lacking = [name for name in missing if self.lora is None or is_adapter(name)]
        if lacking or unexpected:
            raise _misfit_error(checkpoint, (*lacking, *unexpected))
        return model

    def _read_fitting(self, checkpoint: Path, model: nn.Module) -> dict[str, Tensor]:
        weights, shapes = self.trained_weights(checkpoint), {k: v.shape for k, v in model.state_dict().items()}
        wrong = [name for name, weight in weights.items() if name in shapes and shapes[name] != weight.shape]
        if wrong:
            raise _misfit_error(checkpoint, wrong)
        return weights

    def _build_on_base(self, lora: LoraConfig) -> nn.Module:
        if self._base is None:
            raise ConfigurationError("adapters need their base model")
        model = build_model(self.config, lora)
        weights = read_weights(self._base, self.config)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        lacking = [name for name in missing if not is_adapter(name)]
        if lacking or unexpected:
            raise _misfit_error(self._base, (*lacking, *unexpected))
        initialize_adapters(model, ADAPTER_SEED)
        freeze_all_but_adapters(model)
        set_precision(model, self.precision)
        return model.to(self.device)


def _usable_device(device: str) -> torch.device:
    """Return a device; ConfigurationError if torch has no such device here, or cannot reach it."""
    try:
        torch.empty(1, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:  # the second of a torch that was built without it
        if ran_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"`device: {device}` cannot be used here: {reason}") from error


def _misfit_error(directory: Path, names: tuple[str, ...] | list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"the weights in {directory} do not fit the model's settings: {len(names)} differ, among them {names[0]!r}; "
        "were `base_model` or `lora` changed? Put them back, or give this run another directory"
    )
