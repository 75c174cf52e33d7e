"""Derive a record's Avro schema from its dataclass, and the functions to and from fastavro's dictionaries.

The dataclass is the source; the `.avsc` files are the contract with other languages, and a test compares the two.
`python -m rollbus.schemas.avro.types` writes files of new or changed records, as their next version. With `--replace`
it writes the newest version again, which is right until that version is released.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import operator
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from rollbus.schemas.topics import RECORDS

AVRO_NAMESPACE = "rollbus"
AVRO_FOLDER = Path(__file__).parent
_PRIMITIVES = {"str": "string", "int": "long", "float": "double", "bool": "boolean", "bytes": "bytes"}

Convert = Callable[[Any], Any]


def avro_schema(record: type) -> dict[str, Any]:
    """Return the Avro schema of a record; nested records are defined at their first appearance."""
    return typing.cast(dict[str, Any], _record_schema(record, set()))


def _record_schema(record: type, defined: set[str]) -> Any:
    name = record.__name__
    if name in defined:
        return f"{AVRO_NAMESPACE}.{name}"
    defined.add(name)
    hints, docs = typing.get_type_hints(record), _field_docs(record)
    fields = []
    for field in dataclasses.fields(record):
        entry: dict[str, Any] = {"name": field.name, "type": _type_schema(hints[field.name], defined)}
        if field.name in docs:
            entry["doc"] = docs[field.name]
        if (default := _default(field)) is not dataclasses.MISSING:
            entry["default"] = default
        fields.append(entry)
    doc = inspect.getdoc(record) or ""
    return {"type": "record", "name": name, "namespace": AVRO_NAMESPACE, "doc": doc, "fields": fields}


def _type_schema(hint: Any, defined: set[str]) -> Any:
    kind, inner = kind_of(hint)
    if kind == "optional":
        return ["null", _type_schema(inner, defined)]
    if kind == "tuple":
        return {"type": "array", "items": _type_schema(inner, defined)}
    if kind == "map":
        return {"type": "map", "values": _type_schema(inner, defined)}
    return _record_schema(inner, defined) if kind == "record" else _PRIMITIVES[kind]


def kind_of(hint: Any) -> tuple[str, Any]:
    """Return the kind of a field's type, and its inner type for `optional`, `tuple`, `map` and `record`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return "optional", inner
    if origin is Literal:
        return "str", None
    if origin is tuple:
        return "tuple", arguments[0]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "map", arguments[1]
    if dataclasses.is_dataclass(hint):
        return "record", hint
    return typing.cast(type, hint).__name__, None


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        return dataclasses.MISSING
    return [] if field.default == () else field.default


def _field_docs(record: type) -> dict[str, str]:
    """Read the line under each field, own and inherited."""
    docs: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = typing.cast(ast.ClassDef, definition).body
        for statement, following in itertools.pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                text = ast.literal_eval(following.value)
                docs[typing.cast(ast.Name, statement.target).id] = inspect.cleandoc(text)
    return docs


@cache
def from_plain(record: type) -> Convert:
    """Return the function that makes a record from fastavro's dictionary; it raises the record's own errors."""
    hints = typing.get_type_hints(record)
    fields = dataclasses.fields(record)
    special = tuple((field.name, make) for field in fields if (make := _converter(hints[field.name])))

    def convert(plain: dict[str, Any]) -> Any:
        for name, make in special:
            plain[name] = make(plain[name])
        return record(**plain)

    return convert


def _converter(hint: Any) -> Convert | None:
    """Return the function that converts a field's value after reading; None if it stays as it is."""
    kind, inner = kind_of(hint)
    if kind == "optional":
        return _optional(_converter(inner))
    if kind == "tuple":
        make = _converter(inner)
        return tuple if make is None else lambda value: tuple(map(make, value))
    return from_plain(inner) if kind == "record" else None


@cache
def to_plain(record: type) -> Convert:
    """Return the function that makes fastavro's dictionary from a record; it raises TypeError for another type."""
    hints = typing.get_type_hints(record)
    fields = tuple((field.name, _plain_converter(hints[field.name])) for field in dataclasses.fields(record))

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, record):
            raise TypeError(f"expected a {record.__name__}, not {type(value).__name__}")
        return {name: getattr(value, name) if make is None else make(getattr(value, name)) for name, make in fields}

    return convert


def _plain_converter(hint: Any) -> Convert | None:
    """Return the function that converts a field's value before writing; None if it stays as it is."""
    kind, inner = kind_of(hint)
    if kind == "optional":
        return _optional(_plain_converter(inner))
    if kind == "tuple":
        make = _plain_converter(inner)
        return list if make is None else lambda value: list(map(make, value))
    if kind == "map":
        return lambda value: dict(sorted(value.items()))
    if kind == "int":
        return operator.index  # fastavro cuts a fraction off
    if kind == "bytes":
        return lambda value: value if isinstance(value, bytes) else memoryview(value).tobytes()
    return to_plain(inner) if kind == "record" else None


def _optional(make: Convert | None) -> Convert | None:
    return make and (lambda value: None if value is None else make(value))


def avsc_path(record: type, version: int) -> Path:
    """Return the path of a version of a record's schema."""
    return AVRO_FOLDER / f"{record.__name__}.{version}.avsc"


def avsc_text(schema: dict[str, Any]) -> str:
    """Return a schema as its file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def newest_version(record: type) -> int:
    """Return the highest version of a record on disk; 0 without any."""
    return max((int(path.suffixes[-2][1:]) for path in AVRO_FOLDER.glob(f"{record.__name__}.*.avsc")), default=0)


def write_schemas(*, replace: bool) -> list[Path]:
    """Write the next version of each record whose dataclass differs from its newest file; return what was written.

    `replace` writes the newest version again in place of a next one.
    """
    written_paths = []
    for record in RECORDS:
        version, text = newest_version(record), avsc_text(avro_schema(record))
        if version and avsc_path(record, version).read_text() == text:
            continue
        path = avsc_path(record, version if replace and version else version + 1)
        path.write_text(text)
        written_paths.append(path)
    return written_paths


if __name__ == "__main__":
    for path in write_schemas(replace="--replace" in sys.argv):
        print(f"wrote {path.name}")
