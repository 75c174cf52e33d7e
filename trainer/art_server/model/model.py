"""Token ids → hidden states → logits: what the sampler and the learner run.

`trunk` runs the layers and `head` the projection to the vocabulary, so that callers project only the positions
they need; logits are always float32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus.trainer.art_server.model.config import INITIAL_DEVIATION, ModelConfig
from rollbus.trainer.art_server.model.network import Network
from rollbus.trainer.backends.model_settings import LoraConfig

UNKNOWN_LOGIT = -1e9
"""Finite, so that 0 · log 0 stays 0 in an entropy."""


def build_model(config: ModelConfig, lora: LoraConfig | None = None) -> nn.Module:
    """The network with weights not yet set."""
    return Network(config, lora)


def initialize(model: nn.Module, seed: int) -> None:
    """Normal weights, zero biases, unit norms; the same seed gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name.endswith("scale"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, INITIAL_DEVIATION, generator=generator)


def trunk(
    model: Any,
    token_ids_B_T: Tensor,
    *,
    positions_B_T: Tensor | None = None,
    mask_B_T_S: Tensor | None = None,
) -> Tensor:
    """Hidden states [B, T, D] after the final norm. Without a mask attention is causal over each row.

    Where S is not T, the mask's columns are positions.
    """
    hidden: Tensor = model.tok_embeddings(token_ids_B_T)  # [B, T, D]
    if model.embedding_factor is not None:
        hidden = hidden * model.embedding_factor
    hidden = hidden.to(model.layers[0].attn.output_proj.weight.dtype)
    sliding_mask = mask_B_T_S
    if model.window is not None:
        sliding_mask = _mask_window(model.window, hidden, positions_B_T, mask_B_T_S)
    for layer in model.layers:
        hidden = layer(hidden, mask=sliding_mask if layer.attn.slides else mask_B_T_S, input_pos=positions_B_T)
    normed: Tensor = model.norm(hidden)
    return normed


def head(model: Any, hidden: Tensor) -> Tensor:
    """Logits [..., V], computed in float32; a token that the tokenizer does not have gets none of the probability."""
    matrix = (model.tok_embeddings if model.output is None else model.output).weight
    logits: Tensor = functional.linear(hidden.float(), matrix)
    if model.logit_factor is not None:
        logits = logits * model.logit_factor
    if model.logit_cap is not None:
        logits = model.logit_cap * torch.tanh(logits / model.logit_cap)
    if model.known_tokens is not None and model.known_tokens < logits.shape[-1]:
        logits[..., model.known_tokens :] = UNKNOWN_LOGIT
    return logits


def _mask_window(window: int, hidden: Tensor, positions_B_T: Tensor | None, mask_B_T_S: Tensor | None) -> Tensor:
    """The mask [B, T, S] without what is `window` tokens or more ago."""
    tokens = hidden.shape[1]
    if positions_B_T is None:
        positions_B_T = torch.arange(tokens, device=hidden.device)[None]
    if mask_B_T_S is None:
        mask_B_T_S = torch.ones(1, tokens, tokens, dtype=torch.bool, device=hidden.device).tril()
    columns = mask_B_T_S.shape[-1]
    seen_B_S = positions_B_T if columns == tokens else torch.arange(columns, device=hidden.device)[None]
    return mask_B_T_S & (positions_B_T[:, :, None] - seen_B_S[:, None] < window)
