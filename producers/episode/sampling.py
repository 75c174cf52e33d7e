"""Which episodes are recorded, decided once per group, so that a group is never half recorded.

The same id gives the same answer in every process.
"""

import hashlib

_DIGEST_BYTES = 8


def is_sampled(unit: str, rate: float) -> bool:
    """Say whether a group (or an episode without one) is recorded at this rate."""
    if rate >= 1:
        return True
    digest = hashlib.blake2b(unit.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") / float(1 << 8 * _DIGEST_BYTES) < rate
