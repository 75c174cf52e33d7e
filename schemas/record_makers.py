"""Compiled functions that make a frozen record in a third of the time of its constructor.

The constructor of a frozen dataclass sets each field by a call. These functions fill an object of the same layout whose
fields can be set, check it by the record's own rules, and then turn it into the record.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


@cache
def unfrozen(record: type) -> type:
    """Return a class of the record's layout whose fields can be set; `finishing` makes its objects records.

    Python stores a field without a call only if the class inherits no `__setattr__` and `__delattr__` of a frozen base.
    """
    slots = {"__slots__": record.__slots__}  # type: ignore[attr-defined]
    plain = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(f"{record.__name__}InTheMaking", record.__bases__, slots | plain)


def finishing(record: type) -> list[str]:
    """Return the statements that turn `_made`, an object of the unfrozen class, into a `_frozen` one, and check it."""
    checked = ["_made.__post_init__()"] if hasattr(record, "__post_init__") else []
    return ["_made.__class__ = _frozen", *checked]


def maker(record: type[T]) -> Callable[..., T]:
    """Return a function of all fields in their order that makes a record."""
    names = [field.name for field in dataclasses.fields(cast(Any, record))]
    return _compile_maker(record, f"make({', '.join(names)})", {name: name for name in names})


def copier(source: type, target: type[T], *given: str) -> Callable[..., T]:
    """Return a function of a source and of the `given` fields, by name, that makes a target.

    Its other fields are the source's of the same name. Raises TypeError for a field that neither provides.
    """
    target_fields = [field.name for field in dataclasses.fields(cast(Any, target))]
    source_fields = {field.name for field in dataclasses.fields(source)}
    if strange := [*(set(target_fields) - source_fields - set(given)), *(set(given) - set(target_fields))]:
        raise TypeError(f"{target.__name__} of {source.__name__}: missing or unknown fields {sorted(strange)}")
    text = f"make(source, *, {', '.join(given)})" if given else "make(source)"
    return _compile_maker(target, text, {name: name if name in given else f"source.{name}" for name in target_fields})


def _compile_maker(record: type[T], signature: str, values: dict[str, str]) -> Callable[..., T]:
    setting = [f"_made.{name} = {value}" for name, value in values.items()]
    lines = ["_made = _new(_unfrozen)", *setting, *finishing(record), "return _made"]
    scope: dict[str, Any] = {"_new": object.__new__, "_unfrozen": unfrozen(cast(Any, record)), "_frozen": record}
    exec(f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines), scope)
    return cast(Callable[..., T], scope["make"])
