"""Which numbers from outside can be computed with: rewards, scores and the metrics of evaluations."""

LARGEST = 1e30
"""Squares of such numbers and sums of those stay finite, also in a trainer's float32."""


def computable(number: float) -> bool:
    """Say whether a number can be computed with: neither NaN nor infinite, nor beyond LARGEST."""
    return abs(number) <= LARGEST
