"""A method of a library, replaced by ours until a stack is closed.

    class ─▶ ours, of the second recorder ─▶ ours, of the first ─▶ the library's own

Recorders of one process may be closed in any order: each takes its own out from between the others.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

BENEATH = "rollbus_beneath"
"""Attribute of a replacement: its place."""


@dataclass(slots=True)
class _Place:
    """Where a replacement is, by what lies beneath it."""

    method: Any
    is_inherited: bool
    """Whether that is a method of a class above, so that this class gets none of its own back."""


def replace_method(cls: Any, name: str, make: Callable[[Any], Any], stack: ExitStack) -> None:
    """Replace a method by what `make` returns of it. Beneath one that another tool has put there since, ours stays."""
    place = _Place(getattr(cls, name), name not in vars(cls))

    @functools.wraps(place.method)
    def call_beneath(*args: Any, **kwargs: Any) -> Any:
        return place.method(*args, **kwargs)

    replacement = make(call_beneath)
    setattr(replacement, BENEATH, place)
    setattr(cls, name, replacement)

    def take_out() -> None:
        above, method = None, vars(cls).get(name)
        while method is not replacement and (beneath := getattr(method, BENEATH, None)) is not None:
            above, method = beneath, beneath.method
        if method is not replacement:
            return
        if above is not None:
            above.method, above.is_inherited = place.method, place.is_inherited
        elif place.is_inherited:
            delattr(cls, name)
        else:
            setattr(cls, name, place.method)

    stack.callback(take_out)
