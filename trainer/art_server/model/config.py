"""config.json of a base model → the shape of its network, or one sentence about what this service does not run.

`FAMILIES` lists the networks it runs. What a config.json leaves out has the value that transformers gives it, and a
field of another family changes nothing, as in transformers.
"""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import CONFIG_MAPPING, AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import parse_json
from rollbus.trainer.art_server.model.inert_files import require_inert

INITIAL_DEVIATION = 0.02  # as Qwen2's initializer_range
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose frequencies do not depend on how long a sequence is."""
REQUIRED = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
MOST, MOST_OF_ANY = {"num_hidden_layers": 10_000}, 1 << 26
"""Far more than any model has: transformers makes lists of them before anything can be compared with the weights."""
SLIDING = "sliding_attention"
OF_EVERY_FAMILY = {
    *("model_type", "head_dim", "is_causal", "quantization_config"),
    *("rope_theta", "rope_scaling", "rope_local_base_freq", "original_max_position_embeddings"),
}
"""Fields that transformers uses whether the class of a family's settings declares them or not."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the networks of one `model_type` differ from Llama's."""

    biases: bool = False
    """Queries, keys and values always have one."""
    optional_biases: tuple[Literal["qkv", "output", "feed_forward"], ...] = ()
    """Matrices that have one where `attention_bias` or `mlp_bias` says so."""
    query_norms: Literal["none", "heads", "whole"] = "none"
    """Queries and keys are normed before they are rotated: head by head, or all heads together."""
    norms: Literal["inputs", "outputs", "both"] = "inputs"
    """What of attention and feed-forward is normed: what goes in, what comes out before it is added, or both."""
    gemma: bool = False
    """Norms multiply by 1 + w, and embeddings by the root of the width."""
    joined: tuple[Literal["qkv", "gate_up"], ...] = ()
    """Matrices that are stored as one: queries, keys and values; gate and up."""
    interleaved: bool = False
    """Rotated numbers are neighbours in a head, not half a head apart."""
    rotates_part: bool = False
    """`partial_rotary_factor` says how much of a head is rotated; in other families it changes nothing."""
    scales_queries: bool = False
    """Queries far into a text weigh more, by `llama_4_scaling_beta`; in other families it changes nothing."""
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Names of weights where they differ from Llama's; see `weights`."""


GEMMA_NAMES = {
    "sa_scale": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_scale": "post_feedforward_layernorm",
}
GLM_NAMES = {"sa_scale": "post_self_attn_layernorm", "mlp_scale": "post_mlp_layernorm"}
FAMILIES = {
    "llama": Family(optional_biases=("qkv", "output", "feed_forward")),  # Llama 2 and 3.x, SmolLM2
    "mistral": Family(),
    "ministral": Family(),
    "ministral3": Family(scales_queries=True),
    "smollm3": Family(optional_biases=("qkv", "output", "feed_forward")),
    "granite": Family(optional_biases=("qkv", "output", "feed_forward")),
    "seed_oss": Family(optional_biases=("qkv", "feed_forward")),
    "qwen2": Family(biases=True),  # Qwen2.5 too
    "qwen3": Family(optional_biases=("qkv", "output"), query_norms="heads"),
    "gemma": Family(optional_biases=("qkv", "output"), gemma=True),
    "gemma2": Family(optional_biases=("qkv", "output"), gemma=True, norms="both", layer_names=GEMMA_NAMES),
    "gemma3_text": Family(
        optional_biases=("qkv", "output"), gemma=True, norms="both", query_norms="heads", layer_names=GEMMA_NAMES
    ),
    "olmo2": Family(optional_biases=("qkv", "output"), norms="outputs", query_norms="whole", layer_names=GEMMA_NAMES),
    "olmo3": Family(optional_biases=("qkv", "output"), norms="outputs", query_norms="whole", layer_names=GEMMA_NAMES),
    "exaone4": Family(norms="outputs", query_norms="heads", layer_names=GEMMA_NAMES),
    "phi3": Family(joined=("qkv", "gate_up"), rotates_part=True),  # Phi-3, Phi-4 and their minis
    "glm4": Family(
        optional_biases=("qkv",),
        norms="both",
        joined=("gate_up",),
        interleaved=True,
        rotates_part=True,
        layer_names=GLM_NAMES,
    ),
}
WRAPPERS = ("gemma3", "mistral3")
"""Types of models of texts and images whose text part `model import` takes: it is of one of the families."""


@dataclass(frozen=True, slots=True)
class ScaledRope:
    """Rotary positions for sequences longer than those of the pretraining."""

    frequencies: tuple[float, ...]
    """Radians per position, one for each pair of a head's numbers."""
    scale: float
    """Of the sines and cosines."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of the network; the field names are ours, `to_hf` and `from_hf` translate."""

    vocabulary: int = 384
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 256
    max_tokens: int = 512
    """Longest sequence, prompt and completion together."""
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    tied: bool = True
    """Input embedding and output projection share one matrix."""
    model_type: str = "qwen2"
    activation: str = "silu"
    head_dim: int | None = None
    """Width of a head; None divides the width by the heads."""
    rope: ScaledRope | None = None
    """Instead of `rope_theta`."""
    window: int | None = None
    """Newest tokens that a sliding layer attends to."""
    sliding: tuple[bool, ...] = ()
    """For each layer, whether it slides; empty if none does."""
    sliding_rope_theta: float | None = None
    """Of the sliding layers, where it differs."""
    attention_scale: float | None = None
    """Of queries times keys; None takes the root of the head's width."""
    attention_cap: float | None = None
    logit_cap: float | None = None
    """Both bound numbers by cap · tanh(x / cap)."""
    known_tokens: int | None = None
    """Of the vocabulary, the first so many that the tokenizer has; None takes all. No other token is sampled."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Of the projection after attention."""
    feed_forward_bias: bool = False
    unrotated: tuple[bool, ...] = ()
    """For each layer, whether it has no rotary positions; empty if all have."""
    rotary_width: int | None = None
    """How many numbers of a head are rotated, from its first on; None rotates all."""
    position_scale: tuple[float, int] | None = None
    """beta and L: queries at position p are multiplied by 1 + beta · ln(1 + ⌊p / L⌋), as in Llama 4."""
    embedding_factor: float | None = None
    """Multiplies the embeddings."""
    residual_factor: float | None = None
    """Multiplies what attention and feed-forward add."""
    logit_factor: float | None = None
    """Multiplies the logits."""

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def usable_tokens(self) -> int:
        """How many ids a sequence may consist of."""
        return self.known_tokens or self.vocabulary

    @property
    def head_width(self) -> int:
        return self.head_dim or self.width // self.heads

    @property
    def least_numbers(self) -> int:
        """How many weights the matrices have at least."""
        attention = 2 * self.width * self.head_width * (self.heads + self.kv_heads)
        return self.vocabulary * self.width + self.layers * (attention + 3 * self.width * self.feed_forward)

    def to_hf(self, *, eos_token_id: int | None = None) -> dict[str, Any]:
        """Return the config.json of a model that this project makes: a plain one of Qwen2's family."""
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": self.vocabulary,
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.feed_forward,
            "max_position_embeddings": self.max_tokens,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "initializer_range": INITIAL_DEVIATION,
            "eos_token_id": eos_token_id,
            "bos_token_id": None,
            "dtype": "float32",
        }

    @classmethod
    def from_hf(cls, config: dict[str, Any], *, max_tokens: int | None = None) -> "ModelConfig":
        """ConfigurationError for a model that this service does not run, which names what it cannot do."""
        if (kind := config.get("model_type")) not in FAMILIES:
            part = config.get("text_config")
            text = part.get("model_type") if isinstance(part, Mapping) else None
            hint = f"its text part, {text!r}, runs as a model of its own{_of_part(kind)}; " if text in FAMILIES else ""
            raise ConfigurationError(
                f"base model is of type {kind!r}; this service runs {', '.join(FAMILIES)}; {hint}for others use ART's "
                "own service (`art_server: art:`, on a GPU), or one with the Tinker API (`art_server: tinker:`)"
            )
        if lacking := [name for name in REQUIRED if name not in config]:
            raise ConfigurationError(f"the base model's config.json lacks {', '.join(map(repr, lacking))}")
        try:
            whole = {name: int(config[name]) for name in REQUIRED}
            if wrong := [name for name in REQUIRED if whole[name] > MOST.get(name, MOST_OF_ANY)]:
                raise ValueError(f"{wrong[0]} is {whole[wrong[0]]}")
            hf = AutoConfig.for_model(**_used_fields(config))
            epsilon, kv_heads = float(hf.rms_norm_eps), int(hf.num_key_value_heads)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ConfigurationError(f"the base model's config.json has a wrong number: {error}") from error
        _require_supported(hf)
        width, heads, longest = whole["hidden_size"], whole["num_attention_heads"], whole["max_position_embeddings"]
        head_dim = getattr(hf, "head_dim", None)
        if min(heads, kv_heads) < 1 or heads % kv_heads or (not head_dim and width % heads):
            raise ConfigurationError(
                f"the base model's config.json contradicts itself: hidden_size {width}, num_attention_heads "
                f"{heads} and num_key_value_heads {kv_heads} must be positive, each a multiple of the next"
            )
        scalar = getattr(hf, "query_pre_attn_scalar", None)
        return cls(
            vocabulary=whole["vocab_size"],
            layers=whole["num_hidden_layers"],
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            feed_forward=whole["intermediate_size"],
            max_tokens=min(longest, max_tokens) if max_tokens else longest,
            norm_epsilon=epsilon,
            tied=bool(hf.tie_word_embeddings),
            model_type=hf.model_type,
            activation=_activation(hf),
            head_dim=head_dim if head_dim != width // heads else None,
            **({"attention_scale": scalar**-0.5} if scalar else {}),
            attention_cap=hf.attn_logit_softcapping if hf.model_type == "gemma2" else None,  # Gemma 3 ignores its own
            logit_cap=getattr(hf, "final_logit_softcapping", None),
            **_sliding_layers(hf),
            **_positions(hf),
            **_biases(hf),
            **_factors(hf, width),
        )


def _of_part(kind: object) -> str:
    return ", which `rollbus model import` takes out of it" if kind in WRAPPERS else ""


def _used_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the fields that change a network of this family."""
    family = FAMILIES[config["model_type"]]
    declared = inspect.signature(CONFIG_MAPPING[config["model_type"]].__init__).parameters
    names = {*declared, *OF_EVERY_FAMILY, *(["partial_rotary_factor"] if family.rotates_part else [])}
    return copy.deepcopy({name: value for name, value in config.items() if name in names})


def _activation(hf: Any) -> str:
    return str(getattr(hf, "hidden_activation", None) or hf.hidden_act)


def _require_supported(hf: Any) -> None:
    """Raise ConfigurationError for a variant that would be another network without what it asks for."""
    if _activation(hf) not in ACTIVATIONS:
        raise ConfigurationError(
            f"base model's hidden_act is {_activation(hf)!r}; this service runs {' and '.join(ACTIVATIONS)} only"
        )
    if getattr(hf, "use_bidirectional_attention", False):
        raise ConfigurationError(
            "base model has `use_bidirectional_attention`, which this service does not run; take one without it"
        )
    if not getattr(hf, "is_causal", True):
        raise ConfigurationError(
            "base model has `is_causal: false`, so each token attends to later ones, which this service does not run; "
            "take a model that generates text"
        )
    if stored := getattr(hf, "quantization_config", None):
        method = stored.get("quant_method", "an unknown method") if isinstance(stored, dict) else stored
        raise ConfigurationError(
            f"the base model's weights are quantised by {method}, and these cannot be trained; take the model's "
            "float16, bfloat16 or float32 weights, or a GGUF file, which `rollbus model import` converts"
        )


def _sliding_layers(hf: Any) -> dict[str, Any]:
    """Return which layers attend to a window only, and how long it is."""
    window = getattr(hf, "sliding_window", None)
    sliding = tuple(kind == SLIDING for kind in getattr(hf, "layer_types", None) or [SLIDING] * hf.num_hidden_layers)
    if window is None or not any(sliding):
        return {}
    if window < 1 or window != int(window):
        raise ConfigurationError(
            f"base model's sliding_window is {window!r}, and a layer attends to a whole number of tokens, at least "
            "one; write `sliding_window: null` into its config.json if all layers see the whole text"
        )
    return {"window": int(window), "sliding": sliding}


def _positions(hf: Any) -> dict[str, Any]:
    """Return the rotary positions: of all layers, and of the sliding ones where they differ."""
    # transformers 5.2 adds fields of its own to what 5.24 writes for each kind of layer.
    by_kind = {kind: values for kind, values in hf.rope_parameters.items() if isinstance(values, dict)}
    by_layer = by_kind or {None: hf.rope_parameters}
    family = FAMILIES[hf.model_type]
    for parameters in by_layer.values():
        if not family.rotates_part:
            parameters.pop("partial_rotary_factor", None)
        if (kind := parameters["rope_type"]) not in ROPES:
            raise ConfigurationError(
                f"base model's rotary positions are of type {kind!r}; this service runs {', '.join(ROPES)}; take the "
                "model without rope_scaling, whose sequences are then as long as its pretraining's"
            )
    layer = "full_attention" if by_kind else None
    parameters = by_layer[layer]
    positions: dict[str, Any] = {"rope_theta": float(parameters["rope_theta"])}
    if parameters["rope_type"] != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](hf, None, layer_type=layer)
        positions["rope"] = ScaledRope(tuple(frequencies.tolist()), float(scale))
    if layer:
        if (kind := by_layer[SLIDING]["rope_type"]) != "default":
            raise ConfigurationError(
                f"base model's sliding layers have rotary positions of type {kind!r}; this service scales those of the "
                "layers that see the whole text only; take the model without rope_scaling of its sliding layers"
            )
        positions["sliding_rope_theta"] = float(by_layer[SLIDING]["rope_theta"])
    elif hf.model_type == "olmo3":  # it scales the layers that see the whole text, and no others
        positions["sliding_rope_theta"] = float(parameters["rope_theta"])
    if (share := parameters.get("partial_rotary_factor") or 1.0) != 1.0:
        head = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
        positions["rotary_width"] = rotary_width = int(head * share)
        if rotary_width < 2 or rotary_width % 2:
            raise ConfigurationError(
                f"base model's partial_rotary_factor {share} rotates {rotary_width} of the {head} numbers of a head; "
                "this service rotates them in pairs, so it takes an even number, at least two"
            )
    if family.scales_queries and (beta := parameters.get("llama_4_scaling_beta")):
        positions["position_scale"] = (float(beta), int(parameters["original_max_position_embeddings"]))
    return positions | _unrotated_layers(hf)


def _unrotated_layers(hf: Any) -> dict[str, Any]:
    """Return which layers have no rotary positions."""
    if hf.model_type == "exaone4" and hf.sliding_window is not None:  # those that see the whole text
        unrotated = tuple(kind != SLIDING for kind in hf.layer_types)
    else:  # 1 stands for a layer with rotary positions
        unrotated = tuple(not rotates for rotates in getattr(hf, "no_rope_layers", None) or ())
    return {"unrotated": unrotated} if any(unrotated) else {}


def _biases(hf: Any) -> dict[str, Any]:
    """Return which matrices have a bias because config.json asks for it."""
    optional = FAMILIES[hf.model_type].optional_biases
    attention = bool(getattr(hf, "attention_bias", False))
    output = getattr(hf, "attention_out_bias", attention and "output" in optional)
    return {
        "qkv_bias": attention and "qkv" in optional,
        "output_bias": bool(output),
        "feed_forward_bias": "feed_forward" in optional and bool(getattr(hf, "mlp_bias", False)),
    }


def _factors(hf: Any, width: int) -> dict[str, Any]:
    """Return what embeddings, additions, scores of attention and logits are multiplied by, where it is not 1."""
    factors: dict[str, float | None] = {
        "embedding_factor": width**0.5 if FAMILIES[hf.model_type].gemma else getattr(hf, "embedding_multiplier", None),
        "residual_factor": getattr(hf, "residual_multiplier", None),
    }
    if scaling := getattr(hf, "logits_scaling", None):
        factors["logit_factor"] = 1 / scaling
    scale = getattr(hf, "attention_multiplier", None)
    return {name: float(factor) for name, factor in factors.items() if factor not in (None, 1)} | (
        {} if scale is None else {"attention_scale": float(scale)}
    )


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Limits of a batch, for any architecture."""

    max_tokens: int
    usable_tokens: int


def read_limits(directory: Path, *, max_tokens: int | None = None) -> SequenceLimits:
    """From the config.json of any causal language model."""
    loaded = read_settings(directory)
    try:
        longest = int(loaded["max_position_embeddings"])
        return SequenceLimits(min(longest, max_tokens) if max_tokens else longest, int(loaded["vocab_size"]))
    except KeyError as error:
        raise ConfigurationError(f"the base model's config.json lacks {error}") from error


def read_config(directory: Path, *, max_tokens: int | None = None) -> ModelConfig:
    """Return the shape of a model. ConfigurationError for one that is not run, or larger than its files of weights."""
    require_inert(directory)
    config = ModelConfig.from_hf(read_settings(directory), max_tokens=max_tokens)
    stored = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    if stored and config.least_numbers > stored:
        raise ConfigurationError(
            f"the weights in {directory} cannot be read: they have {stored} bytes, and config.json describes a network "
            f"of {config.least_numbers} numbers or more; take the files that belong together, or another copy"
        )
    return config


def read_settings(directory: Path) -> dict[str, Any]:
    """Return what a model's config.json says; ConfigurationError if there is none, or it is not a JSON object."""
    path = directory / "config.json"
    try:
        loaded = parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigurationError(f"no model at {directory}: config.json is missing") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"{path} must be a JSON object, not a {type(loaded).__name__}")
    return loaded
