"""How large the ids and log-probs of a completion of 20,000 tokens are on the wire, as they are and with zstd.

What zstd saves depends on both: a text repeats its words, ids drawn one by one repeat nothing; a sampler is certain of
most tokens, and random log-probs hardly shrink.
"""

import math
import random
import re
from collections.abc import Callable
from pydoc_data.topics import topics

import zstandard

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids

TOKENS = 20_000
VOCABULARY = 150_000
KIB = 1024
PIECE = re.compile(r" ?[A-Za-z]{1,7}|[A-Za-z]{1,4}| ?\d{1,3}|[^\w\s]+|\s+")
"""About as long as a tokenizer's: four characters."""


def ids_of_text(chance: random.Random) -> list[int]:
    """Return ids of English prose, the language reference that Python ships: a piece is a token, its id drawn once."""
    pieces = PIECE.findall("\n".join(text for _, text in sorted(topics.items())))
    distinct_pieces = sorted(set(pieces))
    ids = dict(zip(distinct_pieces, chance.sample(range(VOCABULARY), len(distinct_pieces)), strict=True))
    return [ids[piece] for piece in pieces[:TOKENS]]


def ids_by_zipf(chance: random.Random) -> list[int]:
    """Return ids by Zipf's law, each drawn for itself: no phrase comes twice."""
    return [int(math.exp(chance.random() * math.log(VOCABULARY))) for _ in range(TOKENS)]


def ids_at_random(chance: random.Random) -> list[int]:
    """Return ids in which nothing repeats: the worst case."""
    return [chance.randrange(VOCABULARY) for _ in range(TOKENS)]


def sure(chance: random.Random) -> float:
    """Return a log-prob of a model that is sure of seven tokens in ten."""
    if chance.random() < 0.4:
        return 0.0  # below what float32 tells from certainty, or cut by the server
    if chance.random() < 0.5:
        return -chance.expovariate(1.0) * 1e-3
    return -chance.expovariate(1.0)


def unsure(chance: random.Random) -> float:
    """Return a log-prob of which every bit is random."""
    return -chance.expovariate(1.0)


def sized(ids: Callable[[random.Random], list[int]], logprob: Callable[[random.Random], float]) -> tuple[float, float]:
    """Return KiB as they are and with zstd, at the level of the client that sends them."""
    chance = random.Random(7)
    data = encode_token_ids(ids(chance)) + encode_logprobs([logprob(chance) for _ in range(TOKENS)])
    return len(data) / KIB, len(zstandard.compress(data)) / KIB


def main() -> None:
    """Print each kind of ids with each kind of log-probs."""
    print(f"ids and log-probs of {TOKENS} tokens (targets: 160 KiB as they are, 95 KiB with zstd)")
    for ids in (ids_of_text, ids_by_zipf, ids_at_random):
        for logprob in (sure, unsure):
            raw, packed = sized(ids, logprob)
            kind = f"{ids.__name__}, {logprob.__name__}"
            print(f"  {kind:22} {raw:6.1f} KiB as they are, {packed:6.1f} KiB with zstd")


if __name__ == "__main__":
    main()
