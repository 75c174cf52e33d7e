"""One sample of each version of each record: as bytes that a release has written, and as JSON for other languages.

In the JSON, bytes stand as hexadecimal digits. `python -m tests.schemas.golden --write` adds the files that are
missing; one that exists is never changed, but by `--replace`, which is right until its version is released.
"""

import dataclasses
import json
import typing
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from rollbus.schemas.avro.types import avsc_path, newest_version
from rollbus.schemas.codec import encode
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.topics import RECORDS

FOLDER = Path(__file__).parent
Fields = dict[str, set[str]]
"""Field names by record name, as one version of a schema has them."""
BY_NAME: dict[str, Any] = {
    "token_ids": encode_token_ids([1, 2, 3]),
    "prompt_token_ids": encode_token_ids([1, 2]),
    "completion_token_ids": encode_token_ids([3, 4]),
    "logprobs": encode_logprobs([-0.25, -0.5]),
    "untrainable_reason": None,
    "trainable": True,
}
"""Fields that must agree with others."""
BY_RECORD: dict[str, dict[str, Any]] = {
    "Span": {"start": 1, "end": 3, "turn": 0, "policy_version": 4},
}


def path_of(record: type, version: int) -> Path:
    """Return where a version's bytes stand, as hexadecimal digits."""
    return FOLDER / f"{record.__name__}.{version}.hex"


def sample(record: type, version: int) -> Any:
    """Return the record whose bytes were kept: every value follows from its field's name and type alone.

    Fields that the version does not have yet stand at their defaults.
    """
    fields: Fields = {}
    _collect(json.loads(avsc_path(record, version).read_text()), fields)
    return _record(record, fields)


def plain(record: type, version: int) -> dict[str, Any]:
    """Return the sample as plain values, with the fields that the version has and bytes as hexadecimal digits."""
    fields: Fields = {}
    _collect(json.loads(avsc_path(record, version).read_text()), fields)
    value = _plain(sample(record, version), fields)
    assert isinstance(value, dict)
    return value


def write_missing(*, replace: bool) -> Iterator[Path]:
    """Write the newest version of each record, and the plain form of any, that has no file yet; or all of them."""
    for record in RECORDS:
        newest = newest_version(record)
        yield from _write(path_of(record, newest), encode(sample(record, newest)).hex(), replace=replace)
        for version in range(1, newest + 1):
            text = json.dumps(plain(record, version), indent=1, ensure_ascii=False)
            path = path_of(record, version).with_suffix(".json")
            yield from _write(path, text, replace=replace and version == newest)


def _write(path: Path, text: str, *, replace: bool) -> Iterator[Path]:
    if not path.exists() or (replace and path.read_text() != text + "\n"):
        path.write_text(text + "\n")
        yield path


def _plain(value: Any, fields: Fields) -> Any:
    if dataclasses.is_dataclass(value):
        names = fields[type(value).__name__]
        return {
            field.name: _plain(getattr(value, field.name), fields)
            for field in dataclasses.fields(value)
            if field.name in names
        }
    if isinstance(value, Mapping):
        return {key: _plain(item, fields) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, fields) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _collect(schema: Any, fields: Fields) -> None:
    if isinstance(schema, list):
        for part in schema:
            _collect(part, fields)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            fields[schema["name"]] = {field["name"] for field in schema["fields"]}
            for field in schema["fields"]:
                _collect(field["type"], fields)
        else:
            for inner in ("type", "items", "values"):
                _collect(schema.get(inner), fields)


def _record(record: type, fields: Fields) -> Any:
    hints = typing.get_type_hints(record)
    fixed = BY_NAME | BY_RECORD.get(record.__name__, {})
    values = {
        field.name: fixed[field.name] if field.name in fixed else _value(field.name, hints[field.name], fields)
        for field in dataclasses.fields(record)
        if field.name in fields[record.__name__]
    }
    return record(**values)


def _value(name: str, hint: Any, fields: Fields) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    number = zlib.crc32(name.encode()) % 1_000
    if origin in (Union, UnionType):
        return _value(name, next(argument for argument in arguments if argument is not type(None)), fields)
    if origin is Literal:
        return arguments[number % len(arguments)]
    if origin is tuple:
        return (_value(name, arguments[0], fields),)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {f"{name}-key": _value(name, arguments[1], fields)}
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), fields)
    plain: dict[Any, Any] = {
        str: f"{name} ü",
        int: number,
        float: number / 8,
        bool: True,
        bytes: name.encode(),
    }
    return plain[hint]
