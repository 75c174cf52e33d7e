"""A share of a count: 28 % of 25 are 7, and binary floats make them 7.000000000000001."""

DIGITS = 9
"""After the point. Shares of up to six digits, of up to a million, are exact so; a float is off by far less."""


def share_of(share: float, count: int) -> float:
    """Return a share of a count, without what binary floats add or take: it may be rounded up, down or compared."""
    return round(share * count, DIGITS)
