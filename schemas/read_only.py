"""Mappings that a user's function reads and cannot change.

A reward that wrote into a trajectory's labels would change what later stages decide from, and a replay would see
something else. A view is a dict, so that it can be printed, compared and written as JSON; its copies are plain dicts.
"""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyMapping(dict[K, V]):
    """A copy of a mapping; each change raises TypeError with the field's name."""

    __slots__ = ("_field",)

    def __init__(self, items: Any = (), field: str = "this mapping") -> None:
        super().__init__(items)
        self._field = field

    def _refuse(self, *args: object, **named: object) -> NoReturn:
        raise TypeError(f"{self._field} is read-only; change a copy, as in dict({self._field})")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[Mapping[K, V]]]:
        """Copy and pickle it as a plain dict."""
        return dict, (dict(self),)
