"""A Qwen3 of two layers with random weights in Hugging Face's layout, which SkyRL can train and vLLM can serve.

Run as `python -m tests.tiny_qwen3 FOLDER HEAD_DIM`: importing transformers' models warns of much.
"""

import sys
from pathlib import Path

VOCABULARY = 384
TEXTS = ["system user assistant", "choose a letter of the word and say it again"]


def make_base_model(folder: Path, head_dim: int) -> None:
    """Write the model and its tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(TEXTS, vocabulary=VOCABULARY)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        initializer_range=0.2,  # of the output matrix too, which adapters leave as it is
    )
    torch.manual_seed(7)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    make_base_model(Path(sys.argv[1]), int(sys.argv[2]))
