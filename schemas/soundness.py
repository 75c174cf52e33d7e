"""The rules that every record must keep before a stage may build on it: ids fit into keys, numbers fit into rows.

The schema admits any text and any 64-bit number. But stages join ids to keys with a separator, add spans of time to
times and pack numbers into fixed places. A value that would break this is refused here. Every record of the stream is
checked, so each type has one function, which is compiled once.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

from rollbus.schemas.avro.types import kind_of
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import SEPARATOR

MOST = 2**53
"""For times, offsets and versions: the sum of a few still fits 64 bits, and a double holds each exactly."""
MOST_COUNTED = 2**31 - 1
COUNTED = ("sequence", "count", "revision", "score_revision", "group_size", "choice", "prefix_count")
"""Fields that stages count, and pack as 32 bits."""
ANY = ("seed",)
_IDS = ("_id", "_ids", "_key", "_hint", "_hash", "alias", "task", "model", "name", "agent")
"""Endings of the names of fields whose text becomes part of a key."""


def check_sound(record: Any) -> None:
    """Raise InvalidRecordError for a record that no stage could handle."""
    kind: Any = type(record)
    checker = _checker(kind)
    if checker is not None:
        checker(record)


@cache
def _checker(record: type) -> Callable[[Any], None] | None:
    """Return the check of a type; None if any value will do."""
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
    kind, inner = kind_of(hint)
    guard = ""
    if kind == "optional":
        guard = f"r.{name} is not None and "
        kind, inner = kind_of(inner)
    if kind == "int":
        most = MOST_COUNTED if name in COUNTED else MOST
        return [] if name in ANY else [f"if {guard}not -{most} <= r.{name} <= {most}: _refuse(r, {name!r})"]
    if kind == "str":
        return [f"if {guard}{SEPARATOR!r} in r.{name}: _refuse(r, {name!r})"] if name.endswith(_IDS) else []
    if kind == "tuple" and kind_of(inner)[0] == "str" and name.endswith(_IDS):
        return [f"if {guard}any({SEPARATOR!r} in each for each in r.{name}): _refuse(r, {name!r})"]
    nested = _checker(inner) if kind in ("record", "tuple") else None
    if nested is None:
        return []
    scope[f"_{name}"] = nested
    if kind == "tuple":
        return [f"for each in r.{name} or (): _{name}(each)"]
    return [f"if r.{name} is not None: _{name}(r.{name})"]


def _refuse(record: Any, name: str) -> None:
    value = getattr(record, name)
    problem = f"{value:,} is out of range" if isinstance(value, int) else "holds the control character U+001F"
    raise InvalidRecordError(f"{type(record).__name__}: {name} {problem}")
