"""The weights that the optimizer moves: float32 twins of the trained parameters, so that rounding keeps small steps.

A float32 parameter has no twin. Gradients are summed in float32 over the passes of a step.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rollbus.schemas.errors import ConfigurationError


class MasterWeights:
    """The parameters of a network that require a gradient, by name."""

    def __init__(self, model: nn.Module) -> None:
        self._trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.named: dict[str, nn.Parameter] = {
            name: parameter if parameter.dtype == torch.float32 else nn.Parameter(parameter.detach().float())
            for name, parameter in self._trained.items()
        }

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set other values. ConfigurationError if they are of another network."""
        wrong = sorted(
            name
            for name in self.named.keys() | weights.keys()
            if name not in self.named or name not in weights or self.named[name].shape != weights[name].shape
        )
        if wrong:
            raise ConfigurationError(f"{len(wrong)} weights do not fit this model, among them {wrong[0]!r}")
        with torch.no_grad():
            for name, master in self.named.items():
                master.copy_(weights[name])
        self.write_back()

    def collect_gradients(self) -> None:
        """Add what a backward pass left at the parameters to their masters."""
        for name, parameter in self._trained.items():
            master = self.named[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def write_back(self) -> None:
        """Round the masters into the network."""
        with torch.no_grad():
            for name, parameter in self._trained.items():
                if self.named[name] is not parameter:
                    parameter.copy_(self.named[name])
