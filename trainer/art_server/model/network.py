"""The layers of every family, from torchtune's parts; attention is written out here.

torchtune's own attention norms heads after their rotation and knows no cap, no scale and no window. Weights lie as
Hugging Face stores them, so nothing is permuted and an adapter fits as it is.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus.trainer.art_server.model.config import ModelConfig, ScaledRope
from rollbus.trainer.backends.model_settings import LoraConfig

with warnings.catch_warnings():  # torchtune imports torchao, which warns and logs about parts that are not used here
    warnings.simplefilter("ignore")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    from torchtune.models.gemma.rms_norm import GemmaRMSNorm  # type: ignore[import-untyped]
    from torchtune.models.qwen2._positional_embeddings import (  # type: ignore[import-untyped]
        Qwen2RotaryPositionalEmbeddings,
    )
    from torchtune.modules import FeedForward, RMSNorm, TransformerSelfAttentionLayer  # type: ignore[import-untyped]
    from torchtune.modules.peft import LoRALinear  # type: ignore[import-untyped]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "gelu_pytorch_tanh": partial(nn.GELU, approximate="tanh"),
}

FOLDED_TOKENS = 32
"""Up to so many tokens a row, attention takes heads that share keys for further tokens; more would fill the caches."""


class Network(nn.Module):
    """Embeddings, layers, final norm and projection; `model.trunk` and `model.head` run them."""

    def __init__(self, config: ModelConfig, lora: LoraConfig | None = None) -> None:
        super().__init__()
        rotate = _Rotation(config.head_width, config.max_tokens, config.rope_theta, config.rope)
        rotate_sliding = rotate
        if config.sliding_rope_theta is not None:
            rotate_sliding = _Rotation(config.head_width, config.max_tokens, config.sliding_rope_theta)
        sliding = config.sliding or (False,) * config.layers
        self.tok_embeddings = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(_layer(config, lora, rotate_sliding if one else rotate, one) for one in sliding)
        self.norm = _norm(config)(config.width)
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self.embedding_scale = config.width**0.5 if config.family.gemma else None
        self.logit_cap = config.logit_cap
        self.window = config.window


class Attention(nn.Module):
    """Causal self-attention of grouped heads, with room for a cache of keys and values."""

    def __init__(
        self, config: ModelConfig, linear: Callable[..., nn.Module], rotate: nn.Module, *, slides: bool
    ) -> None:
        super().__init__()
        width, size, biases = config.width, config.head_width, config.family.biases
        self.q_proj = linear(width, config.heads * size, bias=biases)
        self.k_proj = linear(width, config.kv_heads * size, bias=biases)
        self.v_proj = linear(width, config.kv_heads * size, bias=biases)
        self.output_proj = linear(config.heads * size, width, bias=False)
        norm = _norm(config) if config.family.head_norms else nn.Identity
        self.q_norm, self.k_norm = norm(size), norm(size)
        self.rotate = rotate
        self.slides = slides
        self.kv_cache: Any = None
        self._size = size
        self._scale = config.attention_scale
        self._cap = config.attention_cap

    def forward(
        self, x_B_T_D: Tensor, _: Tensor | None = None, *, mask: Tensor | None = None, input_pos: Tensor | None = None
    ) -> Tensor:
        """Return [B, T, D]; without a mask [B, T, S] each token attends to its row up to itself."""
        heads_B_T = (*x_B_T_D.shape[:2], -1, self._size)
        queries = self.rotate(self.q_norm(self.q_proj(x_B_T_D).view(heads_B_T)), input_pos=input_pos).transpose(1, 2)
        keys = self.rotate(self.k_norm(self.k_proj(x_B_T_D).view(heads_B_T)), input_pos=input_pos).transpose(1, 2)
        values = self.v_proj(x_B_T_D).view(heads_B_T).transpose(1, 2)
        if self.kv_cache is not None:
            keys, values = self.kv_cache.update(keys, values)  # [B, K, S, H]
        if self._cap is not None:
            mixed = _capped_attention(
                queries, *_repeated(queries, keys, values), mask, scale=self._scale, cap=self._cap
            )
        elif mask is not None and queries.shape[2] <= FOLDED_TOKENS:
            mixed = _folded_attention(queries, keys, values, mask, scale=self._scale)
        else:
            seen = None if mask is None else mask[:, None]
            mixed = functional.scaled_dot_product_attention(
                queries, *_repeated(queries, keys, values), attn_mask=seen, is_causal=mask is None, scale=self._scale
            )
        output: Tensor = self.output_proj(mixed.transpose(1, 2).reshape(*x_B_T_D.shape[:2], -1))
        return output


class _Rotation(Qwen2RotaryPositionalEmbeddings):  # type: ignore[misc]
    """torchtune's rotation of a head's halves, at given frequencies."""

    def __init__(self, size: int, max_tokens: int, theta: float, scaled: ScaledRope | None = None) -> None:
        self._scaled = scaled
        super().__init__(size, max_tokens, theta)

    def rope_init(self) -> None:
        super().rope_init()
        if self._scaled is not None:
            self.register_buffer("theta", torch.tensor(self._scaled.frequencies), persistent=False)
            self.build_rope_cache(self.max_seq_len)
            self.cache *= self._scaled.scale


def _layer(config: ModelConfig, lora: LoraConfig | None, rotate: nn.Module, slides: bool) -> nn.Module:
    plain = nn.Linear
    adapted = plain if lora is None else partial(_adapted_linear, lora)
    linear = plain if lora is not None and lora.attention_only else adapted
    norm = partial(_norm(config), config.width)
    feed_forward = FeedForward(
        gate_proj=linear(config.width, config.feed_forward, bias=False),
        down_proj=linear(config.feed_forward, config.width, bias=False),
        up_proj=linear(config.width, config.feed_forward, bias=False),
        activation=ACTIVATIONS[config.activation](),
    )
    output_norms = {"sa_scale": norm(), "mlp_scale": norm()} if config.family.output_norms else {}
    layer: nn.Module = TransformerSelfAttentionLayer(
        Attention(config, adapted, rotate, slides=slides),
        feed_forward,
        sa_norm=norm(),
        mlp_norm=norm(),
        **output_norms,
    )
    return layer


def _adapted_linear(lora: LoraConfig, inputs: int, outputs: int, *, bias: bool) -> nn.Module:
    adapted: nn.Module = LoRALinear(inputs, outputs, rank=lora.rank, alpha=lora.alpha, use_bias=bias)
    return adapted


def _norm(config: ModelConfig) -> Callable[[int], nn.Module]:
    return partial(GemmaRMSNorm if config.family.gemma else RMSNorm, eps=config.norm_epsilon)


def _repeated(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [B, N, S, H] for each of the N heads of the queries, of which several share one."""
    heads = queries.shape[1] // keys.shape[1]
    if heads == 1:
        return keys, values
    return keys.repeat_interleave(heads, dim=1), values.repeat_interleave(heads, dim=1)


def _folded_attention(
    queries_B_N_T_H: Tensor, keys_B_K_S_H: Tensor, values_B_K_S_H: Tensor, mask_B_T_S: Tensor, *, scale: float | None
) -> Tensor:
    """Attention of few tokens over many: the heads that share keys become further tokens, so no key is copied."""
    rows, heads, tokens, size = queries_B_N_T_H.shape
    kv_heads = keys_B_K_S_H.shape[1]
    mask = mask_B_T_S[:, None].repeat(1, 1, heads // kv_heads, 1)  # [B, 1, N / K · T, S]
    folded = queries_B_N_T_H.reshape(rows, kv_heads, -1, size)
    mixed = functional.scaled_dot_product_attention(folded, keys_B_K_S_H, values_B_K_S_H, attn_mask=mask, scale=scale)
    return mixed.reshape(rows, heads, tokens, size)


def _capped_attention(
    queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None, *, scale: float | None, cap: float
) -> Tensor:
    """As scaled_dot_product_attention, with scores bounded by cap · tanh(score / cap): Gemma 2."""
    mask = None if seen is None else seen[:, None]
    scores = (queries @ keys.transpose(2, 3)).float() * (scale or queries.shape[-1] ** -0.5)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    bounded = (cap * torch.tanh(scores / cap)).masked_fill(~mask, torch.finfo(torch.float32).min)
    return bounded.softmax(dim=-1).to(values.dtype) @ values
