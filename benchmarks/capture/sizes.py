"""How large the ids and log-probs of a completion of 20,000 tokens are on the wire, as they are and with zstd.

What zstd saves depends on the log-probs: random ones hardly shrink; a sampler's do, since most tokens are certain.
"""

import math
import random
from collections.abc import Callable

import zstandard

from rollbus.schemas.tokens import encode_logprobs, encode_token_ids

TOKENS = 20_000
VOCABULARY = 150_000
KIB = 1024


def uniform(chance: random.Random) -> tuple[int, float]:
    """Return an id and a log-prob in which nothing repeats: the worst case."""
    return chance.randrange(VOCABULARY), -chance.expovariate(1.0)


def realistic(chance: random.Random) -> tuple[int, float]:
    """Return an id by Zipf's law, and the log-prob of a model that is sure of seven tokens in ten."""
    rank = int(math.exp(chance.random() * math.log(VOCABULARY)))
    if chance.random() < 0.4:
        return rank, 0.0  # below what float32 tells from certainty, or cut by the server
    if chance.random() < 0.5:
        return rank, -chance.expovariate(1.0) * 1e-3
    return rank, -chance.expovariate(1.0)


def sized(draw: Callable[[random.Random], tuple[int, float]]) -> tuple[float, float]:
    """Return KiB as they are and with zstd, at the level of the client that sends them."""
    chance = random.Random(7)
    ids, logprobs = zip(*(draw(chance) for _ in range(TOKENS)), strict=True)
    data = encode_token_ids(ids) + encode_logprobs(logprobs)
    return len(data) / KIB, len(zstandard.compress(data)) / KIB


def main() -> None:
    """Print both kinds."""
    print(f"ids and log-probs of {TOKENS} tokens (targets: 160 KiB as they are, 95 KiB with zstd)")
    for draw in (uniform, realistic):
        raw, packed = sized(draw)
        print(f"  {draw.__name__:10} {raw:6.1f} KiB as they are, {packed:6.1f} KiB with zstd")


if __name__ == "__main__":
    main()
