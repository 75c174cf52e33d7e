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
        rotate = rotate_sliding = _Rotation(config, config.rope_theta, config.rope)
        if config.sliding_rope_theta is not None:
            rotate_sliding = _Rotation(config, config.sliding_rope_theta)
        still = _Still()
        sliding = config.sliding or (False,) * config.layers
        unrotated = config.unrotated or (False,) * config.layers
        self.tok_embeddings = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(
            _layer(config, lora, still if stays else rotate_sliding if slides else rotate, slides)
            for slides, stays in zip(sliding, unrotated, strict=True)
        )
        self.norm = _norm(config)(config.width)
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self.embedding_factor = config.embedding_factor
        self.logit_factor = config.logit_factor
        self.known_tokens = config.known_tokens
        self.logit_cap = config.logit_cap
        self.window = config.window


class Attention(nn.Module):
    """Causal self-attention of grouped heads, with room for a cache of keys and values."""

    def __init__(
        self, config: ModelConfig, linear: Callable[..., nn.Module], rotate: nn.Module, *, slides: bool
    ) -> None:
        super().__init__()
        width, size = config.width, config.head_width
        has_bias = config.family.biases or config.qkv_bias
        self._widths = (config.heads * size, config.kv_heads * size, config.kv_heads * size)
        if "qkv" in config.family.joined:
            self.qkv_proj = linear(width, sum(self._widths), bias=has_bias)
        else:
            self.q_proj, self.k_proj, self.v_proj = (linear(width, out, bias=has_bias) for out in self._widths)
        self.output_proj = linear(config.heads * size, width, bias=config.output_bias)
        kind = config.family.query_norms
        norm = nn.Identity if kind == "none" else _norm(config)
        self.q_norm = norm(size if kind == "heads" else self._widths[0])
        self.k_norm = norm(size if kind == "heads" else self._widths[1])
        self._norms_heads = kind == "heads"
        self.rotate = rotate
        self.slides = slides
        self.kv_cache: Any = None
        self._size = size
        self._scale = config.attention_scale
        self._cap = config.attention_cap
        self._position_scale: nn.Module | None = None
        if config.position_scale is not None:
            self._position_scale = _PositionScale(*config.position_scale, config.max_tokens)

    def forward(
        self, x_B_T_D: Tensor, _: Tensor | None = None, *, mask: Tensor | None = None, input_pos: Tensor | None = None
    ) -> Tensor:
        """Return [B, T, D]; without a mask [B, T, S] each token attends to its row up to itself."""
        queries, keys, values = self._project(x_B_T_D)
        queries = self.rotate(queries, input_pos=input_pos)
        if self._position_scale is not None:
            queries = self._position_scale(queries, input_pos=input_pos)
        queries, keys = queries.transpose(1, 2), self.rotate(keys, input_pos=input_pos).transpose(1, 2)
        values = values.transpose(1, 2)
        if self.kv_cache is not None:
            keys, values = self.kv_cache.update(keys, values)  # [B, K, S, H]
        if self._cap is not None:
            mixed = _capped_attention(
                queries, *_repeat_for_heads(queries, keys, values), mask, scale=self._scale, cap=self._cap
            )
        elif mask is not None and queries.shape[2] <= FOLDED_TOKENS:
            mixed = _folded_attention(queries, keys, values, mask, scale=self._scale)
        else:
            attention_mask = None if mask is None else mask[:, None]
            mixed = functional.scaled_dot_product_attention(
                queries,
                *_repeat_for_heads(queries, keys, values),
                attn_mask=attention_mask,
                is_causal=mask is None,
                scale=self._scale,
            )
        output: Tensor = self.output_proj(mixed.transpose(1, 2).reshape(*x_B_T_D.shape[:2], -1))
        return output

    def _project(self, x_B_T_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normed queries [B, T, N, H] and keys [B, T, K, H], and values [B, T, K, H]."""
        if hasattr(self, "qkv_proj"):
            queries, keys, values = self.qkv_proj(x_B_T_D).split(self._widths, dim=-1)
        else:
            queries, keys, values = self.q_proj(x_B_T_D), self.k_proj(x_B_T_D), self.v_proj(x_B_T_D)
        heads_B_T = (*x_B_T_D.shape[:2], -1, self._size)
        if self._norms_heads:
            return self.q_norm(queries.view(heads_B_T)), self.k_norm(keys.view(heads_B_T)), values.view(heads_B_T)
        return self.q_norm(queries).view(heads_B_T), self.k_norm(keys).view(heads_B_T), values.view(heads_B_T)


class _Rotation(Qwen2RotaryPositionalEmbeddings):  # type: ignore[misc]
    """torchtune's rotation of a head's halves, at given frequencies, of all of a head or of its first numbers.

    Where a family pairs neighbours, those of one pair are put half a head apart first. Queries and keys are reordered
    alike, so their products stay the same.
    """

    def __init__(self, config: ModelConfig, theta: float, scaled: ScaledRope | None = None) -> None:
        self._scaled = scaled
        self._width = config.rotary_width or config.head_width
        self._interleaved = config.family.interleaved
        super().__init__(self._width, config.max_tokens, theta)

    def forward(self, heads_B_T_N_H: Tensor, *, input_pos: Tensor | None = None) -> Tensor:
        """Return the same shape, rotated by each token's position."""
        rotated, rest = heads_B_T_N_H[..., : self._width], heads_B_T_N_H[..., self._width :]
        if self._interleaved:
            rotated = torch.cat([rotated[..., 0::2], rotated[..., 1::2]], dim=-1)
        turned: Tensor = super().forward(rotated, input_pos=input_pos)
        return turned if rest.shape[-1] == 0 else torch.cat([turned, rest], dim=-1)

    def rope_init(self) -> None:
        super().rope_init()
        if self._scaled is not None:
            self.register_buffer("theta", torch.tensor(self._scaled.frequencies), persistent=False)
            self.build_rope_cache(self.max_seq_len)
            self.cache *= self._scaled.scale


class _Still(nn.Module):
    """The rotation of a layer that has none."""

    def forward(self, heads_B_T_N_H: Tensor, *, input_pos: Tensor | None = None) -> Tensor:
        """Return what comes in."""
        return heads_B_T_N_H


class _PositionScale(nn.Module):
    """Queries far into a text weigh more: 1 + beta · ln(1 + ⌊position / length⌋)."""

    def __init__(self, beta: float, length: int, max_tokens: int) -> None:
        super().__init__()
        factors = 1 + beta * torch.log1p(torch.floor(torch.arange(max_tokens) / length))
        self.register_buffer("factors_T", factors, persistent=False)

    def forward(self, queries_B_T_N_H: Tensor, *, input_pos: Tensor | None = None) -> Tensor:
        """Return the same shape."""
        factors_T: Any = self.factors_T
        at_B_T: Tensor = factors_T[: queries_B_T_N_H.shape[1]][None] if input_pos is None else factors_T[input_pos]
        return queries_B_T_N_H * at_B_T[:, :, None, None].to(queries_B_T_N_H.dtype)


class _Factor(nn.Module):
    """Multiplies what is added to the stream."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x_B_T_D: Tensor) -> Tensor:
        """Return the same shape."""
        return x_B_T_D * self._factor


class _JoinedFeedForward(nn.Module):
    """A feed-forward whose gate and up are one matrix."""

    def __init__(self, config: ModelConfig, linear: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.w13 = linear(config.width, 2 * config.feed_forward, bias=config.feed_forward_bias)
        self.w2 = linear(config.feed_forward, config.width, bias=config.feed_forward_bias)
        self.activation = ACTIVATIONS[config.activation]()

    def forward(self, x_B_T_D: Tensor) -> Tensor:
        """Return [B, T, D]."""
        gate, up = self.w13(x_B_T_D).chunk(2, dim=-1)
        output: Tensor = self.w2(self.activation(gate) * up)
        return output


def _layer(config: ModelConfig, lora: LoraConfig | None, rotate: nn.Module, slides: bool) -> nn.Module:
    linear = nn.Linear if lora is None else partial(_adapted_linear, lora)
    norm = partial(_norm(config), config.width)
    before = nn.Identity if config.family.norms == "outputs" else norm
    after: dict[str, nn.Module] = {}
    if config.family.norms != "inputs":
        after = {"sa_scale": norm(), "mlp_scale": norm()}
    elif config.residual_factor is not None:
        after = {"sa_scale": _Factor(config.residual_factor), "mlp_scale": _Factor(config.residual_factor)}
    layer: nn.Module = TransformerSelfAttentionLayer(
        Attention(config, linear, rotate, slides=slides),
        _feed_forward(config, linear),
        sa_norm=before(),
        mlp_norm=before(),
        **after,
    )
    return layer


def _feed_forward(config: ModelConfig, linear: Callable[..., nn.Module]) -> nn.Module:
    if "gate_up" in config.family.joined:
        return _JoinedFeedForward(config, linear)
    bias = config.feed_forward_bias
    plain: nn.Module = FeedForward(
        gate_proj=linear(config.width, config.feed_forward, bias=bias),
        down_proj=linear(config.feed_forward, config.width, bias=bias),
        up_proj=linear(config.width, config.feed_forward, bias=bias),
        activation=ACTIVATIONS[config.activation](),
    )
    return plain


def _adapted_linear(lora: LoraConfig, inputs: int, outputs: int, *, bias: bool) -> nn.Module:
    adapted: nn.Module = LoRALinear(inputs, outputs, rank=lora.rank, alpha=lora.alpha, use_bias=bias)
    return adapted


def _norm(config: ModelConfig) -> Callable[[int], nn.Module]:
    return partial(GemmaRMSNorm if config.family.gemma else RMSNorm, eps=config.norm_epsilon)


def _repeat_for_heads(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
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
