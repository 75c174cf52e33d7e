"""How far a sum strays by chance alone, at any time: the gamma-exponential mixture of Howard et al.

S is a sum of terms that are 0 on average, given what came before; no term differs by more than 1 from a value that was
foreseen for it; V is the sum of the squares of these differences. Then `exp(log_wealth(S, V))` is a wager on S > 0 that
starts with 1 and gains nothing on average. So it ever reaches 1/α with probability α at most (Ville), however often and
whenever somebody looks, with any distribution of the terms, and while the traffic drifts.

Howard, Ramdas, McAuliffe, Sekhon: Time-uniform, nonparametric, nonasymptotic confidence sequences, Annals of Statistics
49(2), 2021: theorem 4 (empirical Bernstein) with the mixture of proposition 9, at c = 1.
"""

from functools import lru_cache
from math import exp, inf, lgamma, log, log1p

RHO = 12.0
"""Where the bound is tightest: at a V of about 9 times this, as some 400 canary episodes of a 0/1 reward have."""
_TERMS = 100_000
_PRECISE = 1e-15


def log_wealth(total: float, variance: float) -> float:
    """Return the log of what the wager on a positive sum has become; it needs no more than S and V."""
    if total <= 0:
        return -inf
    shape, rate = variance + RHO, total + variance + RHO
    return _log_prior() + lgamma(shape) + _log_gamma_share(shape, rate) - shape * log(rate) + total + variance


@lru_cache(maxsize=4096)
def bound(variance: float, alpha: float) -> float:
    """Return the sum that chance passes at some time with probability `alpha` at most."""
    threshold, low, high = -log(alpha), 0.0, 1.0
    while log_wealth(high, variance) < threshold:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if log_wealth(middle, variance) < threshold else (low, middle)
    return high


@lru_cache(maxsize=1)
def _log_prior() -> float:
    return RHO * log(RHO) - lgamma(RHO) - _log_gamma_share(RHO, RHO)


def _log_gamma_share(shape: float, at: float) -> float:
    """Return the log of the regularised lower incomplete gamma function: by its series, or beyond the mode by Lentz."""
    scale = shape * log(at) - at - lgamma(shape)
    if at < shape + 1:
        term = total = 1 / shape
        for n in range(1, _TERMS):
            term *= at / (shape + n)
            total += term
            if term < total * _PRECISE:
                break
        return scale + log(total)
    return log1p(-min(exp(scale) * _upper_fraction(shape, at), 1 - _PRECISE))


def _upper_fraction(shape: float, at: float) -> float:
    b = at + 1 - shape
    c, d = inf, 1 / b
    result = d
    for n in range(1, _TERMS):
        numerator = n * (shape - n)
        b += 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        result *= c * d
        if abs(c * d - 1) < _PRECISE:
            break
    return result
