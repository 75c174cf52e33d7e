"""Headers of a record that was written again from its dead letter: how many times it has been tried, and its origin."""

from collections.abc import Iterable

ATTEMPT_HEADER = "rollbus-attempt"
"""A number in decimal digits; a record without it is tried for the first time."""
ORIGIN_HEADER = "rollbus-origin"
"""`topic:partition:offset` of the record whose copy this is."""

Headers = Iterable[tuple[str, bytes]]


def attempt_of(headers: Headers) -> int:
    """Return the how manyth attempt a record is; one that cannot be read counts as the first."""
    for name, value in headers:
        if name == ATTEMPT_HEADER and value.isdigit() and len(value) < 10:
            return int(value)
    return 1


def origin_of(headers: Headers) -> str | None:
    """Return where the first copy of a record stands; None for a record that is no copy."""
    return next((value.decode(errors="replace") for name, value in headers if name == ORIGIN_HEADER), None)
