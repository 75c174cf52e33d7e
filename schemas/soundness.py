"""What every record must keep to before a stage may build on it: ids that can be parts of keys, numbers that fit a row.

The schema admits any text and any 64-bit number. Stages join ids to keys of their rows with a separator, add spans of
time to times and pack numbers into fixed places; what would break that is refused at the door. One function per type,
compiled once, since every record of the stream goes through it.
"""

import dataclasses
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from rollbus.schemas.errors import InvalidRecordError

SEPARATOR = "\x1f"
"""ASCII's unit separator, which no id may hold."""
MOST = 2**53
"""Of times, offsets, versions: sums of a few such still fit 64 bits, and a double holds each exactly."""
MOST_COUNTED = 2**31 - 1
COUNTED = ("sequence", "count", "revision", "score_revision", "group_size", "choice", "prefix_count")
"""What stages count, and pack as 32 bits."""
ANY = ("seed",)
_IDS = ("_id", "_ids", "_key", "_hint", "_hash", "alias", "task", "model", "name", "agent")
"""How the names of fields end whose text becomes part of a key."""


def check_sound(record: Any) -> None:
    """Raise InvalidRecordError for a record that no stage could handle."""
    kind: Any = type(record)
    checker = _checker(kind)
    if checker is not None:
        checker(record)


@cache
def _checker(record: type) -> Callable[[Any], None] | None:
    """Return the check of a type; None where any value will do."""
    if not dataclasses.is_dataclass(record):
        return None
    lines: list[str] = []
    scope: dict[str, Any] = {"_refuse": _refuse}
    for name, hint in get_type_hints(record).items():
        lines += _lines(name, hint, scope)
    if not lines:
        return None
    exec("def check(r):\n" + "".join(f"    {line}\n" for line in lines), scope)
    check: Callable[[Any], None] = scope["check"]
    return check


def _lines(name: str, hint: Any, scope: dict[str, Any]) -> list[str]:
    options = [each for each in get_args(hint) if each is not types.NoneType] if _is_union(hint) else [hint]
    guard = f"r.{name} is not None and " if _is_union(hint) and types.NoneType in get_args(hint) else ""
    (kind, *others) = options
    if others:
        return []
    if kind is int:
        most = MOST_COUNTED if name in COUNTED else MOST
        return [] if name in ANY else [f"if {guard}not -{most} <= r.{name} <= {most}: _refuse(r, {name!r})"]
    if kind is str:
        return [f"if {guard}{SEPARATOR!r} in r.{name}: _refuse(r, {name!r})"] if name.endswith(_IDS) else []
    if get_origin(kind) is tuple:
        return _each(name, get_args(kind)[0], guard, scope)
    nested = _checker(kind) if isinstance(kind, type) else None
    if nested is None:
        return []
    scope[f"_{name}"] = nested
    return [f"if r.{name} is not None: _{name}(r.{name})"]


def _each(name: str, kind: Any, guard: str, scope: dict[str, Any]) -> list[str]:
    if kind is str and name.endswith(_IDS):
        return [f"if {guard}any({SEPARATOR!r} in each for each in r.{name}): _refuse(r, {name!r})"]
    nested = _checker(kind) if isinstance(kind, type) else None
    if nested is None:
        return []
    scope[f"_{name}"] = nested
    return [f"for each in r.{name} or (): _{name}(each)"]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _refuse(record: Any, name: str) -> None:
    value = getattr(record, name)
    what = f"{value:,} is out of range" if isinstance(value, int) else "holds the control character U+001F"
    raise InvalidRecordError(f"{type(record).__name__}: {name} {what}")
