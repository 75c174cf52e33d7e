"""Names of weights: ours, which are torchtune's, and Hugging Face's, under which checkpoints and adapters are stored.

Only the names differ; the numbers are the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.model.config import ModelConfig

ENDS = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.qkv_proj": "self_attn.qkv_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
    "mlp.w13": "mlp.gate_up_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "sa_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
"""A network has those of its family; `Family.layer_names` has what is called differently there."""
NORMS = {"norm", "sa_norm", "mlp_norm", "sa_scale", "mlp_scale", "attn.q_norm", "attn.k_norm"}
MATRIX = {"weight": "weight", "bias": "bias", "lora_a.weight": "lora_A.weight", "lora_b.weight": "lora_B.weight"}
OUTPUT, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
DERIVED = "rotary_emb.inv_freq"
"""Old checkpoints of Llama hold what follows from the config."""


def hf_names(config: ModelConfig) -> dict[str, str]:
    """Return Hugging Face's name of every weight that a network or an adapter of this family may have."""
    layer = LAYER | dict(config.family.layer_names)
    if config.family.norms == "outputs":
        layer = {module: name for module, name in layer.items() if module not in ("sa_norm", "mlp_norm")}
    names: dict[str, str] = {}
    for place, theirs, modules in (
        ("", "", ENDS),
        *((f"layers.{number}.", f"model.layers.{number}.", layer) for number in range(config.layers)),
    ):
        for module, name in modules.items():
            parts = {"scale": "weight"} if module in NORMS else MATRIX
            names |= {f"{place}{module}.{part}": f"{theirs}{name}.{their_part}" for part, their_part in parts.items()}
    return names


def to_hf_weights(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Weights under Hugging Face's names, from those of `build_model`."""
    names = hf_names(config)
    return {names[name]: weight.detach().contiguous() for name, weight in weights.items()}


def from_hf_weights(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A state dict of `build_model(config)` from weights under Hugging Face's names.

    KeyError for a foreign one; ConfigurationError where the output matrix is another one than config.json says.
    """
    if config.tied and OUTPUT in weights and not torch.equal(weights[OUTPUT], weights.get(EMBEDDINGS, weights[OUTPUT])):
        raise ConfigurationError(
            f"config.json says `tie_word_embeddings: true`, and {OUTPUT} differs from {EMBEDDINGS}, as when an adapter "
            "was merged into one of them; set it to false if the output matrix is part of the model, or remove "
            f"{OUTPUT} from the weights"
        )
    names = {theirs: ours for ours, theirs in hf_names(config).items()}
    return {
        names[name]: weight
        for name, weight in weights.items()
        if not name.endswith(DERIVED) and not (config.tied and name == OUTPUT)
    }
