"""Headers of a record that was written again from its dead letter: the number of its attempt, and its origin."""

from collections.abc import Iterable

ATTEMPT_HEADER = "rollbus-attempt"
"""A number in decimal digits; a record without it is tried for the first time."""
ORIGIN_HEADER = "rollbus-origin"
"""`topic:partition:offset` of the original record."""

Headers = Iterable[tuple[str, bytes]]


def attempt_of(headers: Headers) -> int:
    """Return the number of a record's attempt; 1 if the header is missing or cannot be read."""
    for name, value in headers:
        if name == ATTEMPT_HEADER and value.isdigit() and len(value) < 10:
            return int(value)
    return 1


def origin_of(headers: Headers) -> str | None:
    """Return the place of the original of a copy; None for a record that is not a copy."""
    return next((value.decode(errors="replace") for name, value in headers if name == ORIGIN_HEADER), None)
