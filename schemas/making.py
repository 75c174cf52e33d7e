"""Ways to make a frozen record that cost a third of its constructor, by functions that are compiled once.

The constructor of a frozen dataclass sets each field by a call. Here an object of the same layout whose fields can be
set is filled, checked by the record's own rules, and only then becomes the record.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")


@cache
def unfrozen(record: type) -> type:
    """Return a class of the record's layout whose fields can be set; `finishing` makes its objects records."""
    slots = {"__slots__": record.__slots__, "__setattr__": object.__setattr__}  # type: ignore[attr-defined]
    return type(f"{record.__name__}InTheMaking", record.__bases__, slots)


def finishing(record: type) -> list[str]:
    """Return the statements that turn `made`, an object of the unfrozen class, into the record, and check it."""
    checked = ["made.__post_init__()"] if hasattr(record, "__post_init__") else []
    return ["made.__class__ = record", *checked]


def copier(source: type, target: type[T], *given: str) -> Callable[..., T]:
    """Return a function of a source and of the `given` fields, by name, that makes a target.

    Its other fields are the source's of the same name; a field that nobody gives is refused here, not at work.
    """
    wanted = [field.name for field in dataclasses.fields(cast(Any, target))]
    known = {field.name for field in dataclasses.fields(source)}
    if strange := [*(set(wanted) - known - set(given)), *(set(given) - set(wanted))]:
        raise TypeError(f"{target.__name__} of {source.__name__}: nobody gives, or nobody has, {sorted(strange)}")
    copied = [f"made.{name} = {name if name in given else f'source.{name}'}" for name in wanted]
    lines = ["made = new(unfrozen)", *copied, *finishing(target), "return made"]
    text = f"def copy(source, *, {', '.join(given)}):\n" if given else "def copy(source):\n"
    scope: dict[str, Any] = {"new": object.__new__, "unfrozen": unfrozen(target), "record": target}
    exec(text + "".join(f"    {line}\n" for line in lines), scope)
    return cast(Callable[..., T], scope["copy"])
