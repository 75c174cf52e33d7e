"""Make a base model where torch is imported already: the launcher calls it."""

from pathlib import Path

from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer
from rollbus.trainer.art_server.model.config import ModelConfig
from tests.models import create_model
from tests.services.art.fixtures import TOKENS


def make(folder: str, words: str, max_tokens: str, seed: str) -> None:
    config = ModelConfig(layers=2, width=64, heads=4, kv_heads=2, feed_forward=128, max_tokens=int(max_tokens))
    create_model(Path(folder), config, build_tokenizer([words], vocabulary=TOKENS), seed=int(seed))
