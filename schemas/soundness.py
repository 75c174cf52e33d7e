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

MAX_NUMBER = 2**53
"""For times, offsets and versions: the sum of a few still fits 64 bits, and a double holds each exactly."""
MAX_COUNT = 2**31 - 1
"""For `COUNT_FIELDS`, which stages pack as 32 bits."""
COUNT_FIELDS = ("sequence", "count", "revision", "score_revision", "group_size", "choice", "prefix_count")
UNBOUNDED_FIELDS = ("seed",)
"""Fields of numbers that no stage reckons with."""
KEY_PART_ENDINGS = ("_id", "_ids", "_key", "_hint", "_hash", "alias", "task", "model", "name", "agent")
"""Endings of the names of fields whose text becomes part of a key."""


def check_sound(record: Any) -> None:
    """Raise InvalidRecordError for a record that no stage could handle."""
    record_type: Any = type(record)
    check = _compile_check(record_type)
    if check is not None:
        check(record)


@cache
def _compile_check(record_type: type) -> Callable[[Any], None] | None:
    """Return the check of a type; None if any value will do."""
    if not dataclasses.is_dataclass(record_type):
        return None
    lines: list[str] = []
    scope: dict[str, Any] = {"_refuse": _refuse}
    for name, hint in get_type_hints(record_type).items():
        lines += _write_field_check(name, hint, scope)
    if not lines:
        return None
    exec("def check(r):\n" + "".join(f"    {line}\n" for line in lines), scope)
    check: Callable[[Any], None] = scope["check"]
    return check


def _write_field_check(name: str, hint: Any, scope: dict[str, Any]) -> list[str]:
    """Return the lines that check a field of `r`; what they call for a record in it goes into `scope`."""
    kind, inner = kind_of(hint)
    guard = ""
    if kind == "optional":
        guard = f"r.{name} is not None and "
        kind, inner = kind_of(inner)
    if kind == "int":
        if name in UNBOUNDED_FIELDS:
            return []
        most = MAX_COUNT if name in COUNT_FIELDS else MAX_NUMBER
        return [f"if {guard}not -{most} <= r.{name} <= {most}: _refuse(r, {name!r})"]
    if kind == "str":
        return [f"if {guard}{SEPARATOR!r} in r.{name}: _refuse(r, {name!r})"] if name.endswith(KEY_PART_ENDINGS) else []
    if kind == "tuple" and kind_of(inner)[0] == "str" and name.endswith(KEY_PART_ENDINGS):
        return [f"if {guard}any({SEPARATOR!r} in text for text in r.{name}): _refuse(r, {name!r})"]
    check_inner = _compile_check(inner) if kind in ("record", "tuple") else None
    if check_inner is None:
        return []
    scope[f"check_{name}"] = check_inner
    if kind == "tuple":
        return [f"for item in r.{name} or (): check_{name}(item)"]
    return [f"if r.{name} is not None: check_{name}(r.{name})"]


def _refuse(record: Any, name: str) -> None:
    value = getattr(record, name)
    problem = f"{value:,} is out of range" if isinstance(value, int) else "holds the control character U+001F"
    raise InvalidRecordError(f"{type(record).__name__}: {name} {problem}")
