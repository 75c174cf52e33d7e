"""A whole number is a long on the wire: what is larger than 2³¹ − 1 is the same number in every language.

A plain Avro int that is too large is written by some libraries (fastavro 1.13.1) and read as another number by others
(Java, Go). So no field is one, and a number of more than 64 bits is refused.
"""

import dataclasses
import json
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from rollbus.schemas.avro.types import AVRO_FOLDER, kind_of, newest_version
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.topics import RECORDS
from tests.schemas.codecs import using
from tests.schemas.golden import sample

LARGE = (2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1)
TOO_LARGE = (2**63, -(2**63) - 1, 2**64, 2**200)


def hints_of(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def with_numbers(record: Any, value: int) -> Iterator[tuple[str, Any]]:
    """Yield a copy of the record for each of its whole numbers at any depth, with that one replaced."""
    for field in dataclasses.fields(record):
        name, old = field.name, getattr(record, field.name)
        kind, inner = kind_of(hints_of(type(record))[name])
        if kind == "optional":
            kind, inner = kind_of(inner)
        copies: Iterator[tuple[str, Any]] = iter(())
        if kind == "int":
            copies = iter([("", value)])
        elif kind == "record" and old is not None:
            copies = with_numbers(old, value)
        elif kind == "tuple" and old:
            first_kind, _ = kind_of(inner)
            rest = tuple(old[1:])
            if first_kind == "int":
                copies = iter([("[0]", (value, *rest))])
            elif first_kind == "record":
                copies = ((f"[0].{path}", (copy, *rest)) for path, copy in with_numbers(old[0], value))
        elif kind == "map" and old and kind_of(inner)[0] == "int":
            copies = iter([("{}", {**old, next(iter(old)): value})])
        for path, copy in copies:
            yield f"{name}{path and '.' + path}", replace_unchecked(record, name, copy)


def replace_unchecked(record: Any, name: str, value: Any) -> Any:
    """Return a copy with one field replaced, without the record's own rules: the codec has to hold without them."""
    copy = object.__new__(type(record))
    for field in dataclasses.fields(record):
        object.__setattr__(copy, field.name, value if field.name == name else getattr(record, field.name))
    return copy


def types_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, list):
        for branch in schema:
            yield from types_in(branch)
    else:
        yield from types_in(schema.get("items", schema.get("values", schema["type"])))
        for field in schema.get("fields", ()):
            yield from types_in(field["type"])


def test_no_schema_has_an_int() -> None:
    schemas = [json.loads(path.read_text()) for path in sorted(AVRO_FOLDER.glob("*.avsc"))]
    assert len(schemas) >= len(RECORDS)
    assert [schema["name"] for schema in schemas if "int" in types_in(schema)] == []


@pytest.mark.parametrize("way", ["native", "by_fastavro"])
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_number_of_64_bits_is_written_and_a_larger_one_is_refused(record: type, way: str) -> None:
    whole = sample(record, newest_version(record))
    with using(way):
        for value in (*LARGE, -(2**63)):
            for path, copy in with_numbers(whole, value):
                with suppress(InvalidRecordError):  # a rule of the record's own, such as that a span has an end
                    assert decode(encode(copy)) == copy, path
        for value in TOO_LARGE:
            for path, copy in with_numbers(whole, value):
                with pytest.raises(InvalidRecordError):
                    pytest.fail(f"{path} was written as {encode(copy).hex()}")


@pytest.mark.parametrize("way", ["native", "by_fastavro"])
def test_a_fraction_is_not_a_whole_number(way: str) -> None:
    record = next(record for record in RECORDS if record.__name__ == "Tick")
    with using(way):
        for _, copy in with_numbers(sample(record, 1), 1.5):  # type: ignore[arg-type]
            with pytest.raises(InvalidRecordError):
                encode(copy)
