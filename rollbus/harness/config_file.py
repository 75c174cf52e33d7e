"""A YAML file, the environment and `-o` overrides → one Configuration; every mistake reported together.

Overrides are applied to the document before anything is read from it, so they reach every section. A key that no
class knows is a mistake, with the nearest name that would be one.
"""

import difflib
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rollbus.harness import registry
from rollbus.harness.configuration import TABLES, Configuration
from rollbus.harness.registry import Kind
from rollbus.harness.typed import TypedConfig
from rollbus.schemas.errors import ConfigurationError, nearest
from rollbus.settings_file import Place, dotted, read_document

NEAR_ENOUGH = 0.85
"""Likeness above which a key that a class would pass on is taken for a slip of the pen."""


def load_configuration(
    path: Path, environment: Mapping[str, str], overrides: Iterable[tuple[str, str]] = ()
) -> Configuration:
    """Return the configuration; raises ConfigurationError that lists every mistake, one line each."""
    values, lines, mistakes = read_document(path, environment)
    for key, text in overrides:
        mistakes += _override(values, key, text, lines)
    if not mistakes:
        _import_modules(values, path)
        mistakes = [*_mistakes(values, lines)]
    if not mistakes:
        config = _parsed(values)
        mistakes = [f"  {_line(place, lines)}: {dotted(place)}: {message}" for place, message in _dangling(config)]
        if not mistakes:
            return config
    raise ConfigurationError("\n".join([f"{len(mistakes)} mistake(s) in the configuration {path}:", *mistakes]))


def _override(values: dict[str, Any], key: str, text: str, lines: dict[Place, str]) -> list[str]:
    """Set one dotted key; a table's entry must be there already."""
    place: Place = tuple(key.split("."))
    section: Any = values
    for depth, part in enumerate(place[:-1]):
        table = place[:depth]
        if table in TABLES and part not in section:
            return [f"  -o {key}: {dotted(table)} has no entry {part!r}{_nearest(str(part), section)}"]
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            return [f"  -o {key}: {dotted(place[: depth + 1])} is a value, not a section"]
    section[str(place[-1])] = _value(text)
    lines[place] = f"-o {key}"
    return []


def _value(text: str) -> Any:
    """Return a value as YAML reads it; a value that is not YAML (`Answer: yes: or no`) is text."""
    try:
        return yaml.safe_load(text) if text.strip() else text
    except yaml.YAMLError:
        return text


def _import_modules(values: Mapping[str, Any], path: Path) -> None:
    """Import what the file names; its own folder is looked into first, as a script's is."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    section = values.get("rollbus")
    named = section.get("imports", ()) if isinstance(section, Mapping) else ()
    registry.load_modules(tuple(named) if isinstance(named, list | tuple) else (str(named),))


def _mistakes(values: Mapping[str, Any], lines: Mapping[Place, str]) -> Iterator[str]:
    for place, message in [*_unknown(Configuration, _without_tables(values), ()), *_entry_mistakes(values)]:
        yield f"  {_line(place, lines)}: {dotted(place)}: {message}"
    try:
        Configuration.model_validate(_without_tables(values))
    except ValidationError as error:
        yield from _described(error, (), lines)


def _entry_mistakes(values: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    for table in TABLES:
        section = _section(values, table)
        if section is not None and not isinstance(section, Mapping):
            yield table, f"must be a table of names and entries, not {section!r}"
    for place, kind, entry in _entries(values):
        if not isinstance(entry, Mapping):
            yield place, f"must be a mapping with a `_type`, not {entry!r}"
            continue
        type_name = entry.get("_type")
        if type_name is None:
            yield place, "has no `_type`"
            continue
        try:
            config_type = registry.lookup(kind, str(type_name)).config_type
        except ConfigurationError as error:
            yield (*place, "_type"), str(error)
            continue
        yield from _unknown(config_type, entry, place)
        try:
            config_type.model_validate(entry)
        except ValidationError as error:
            for detail in error.errors():
                if detail["type"] != "extra_forbidden":
                    yield (*place, *detail["loc"]), detail["msg"].removeprefix("Value error, ")


def _parsed(values: Mapping[str, Any]) -> Configuration:
    whole = {key: value for key, value in values.items() if value is not None}
    for place, kind, entry in _entries(values):
        section: Any = whole
        for key in place[:-1]:
            section[key] = dict(section[key])
            section = section[key]
        section[place[-1]] = _parse_entry(kind, entry)
    return Configuration.model_validate(whole)


def _parse_entry(kind: Kind, entry: Mapping[str, Any]) -> TypedConfig:
    return registry.lookup(kind, str(entry["_type"])).config_type.model_validate(entry)


def _entries(values: Mapping[str, Any]) -> Iterator[tuple[Place, Kind, Any]]:
    """Yield every entry that is chosen by `_type`, with its place and kind."""
    for table, kind in TABLES.items():
        section = _section(values, table)
        if isinstance(section, Mapping):
            for name, entry in section.items():
                yield (*table, str(name)), kind, entry
    if values.get("workflow") is not None:
        yield ("workflow",), "function", values["workflow"]


def _section(values: Mapping[str, Any], place: Place) -> Any:
    """Return the value at a place, or None."""
    found: Any = values
    for key in place:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _dangling(config: Configuration) -> Iterator[tuple[Place, str]]:
    """Yield what `finetuning` says that cannot be: names without an entry in their table, the command line's part."""
    chosen = config.finetuning
    if chosen.run_configuration is not None:
        yield ("finetuning", "run_configuration"), "is set by the command line; give its options there"
    if not chosen.enabled:
        return
    tables: dict[str, Mapping[str, Any]] = {
        "trainer": config.trainers,
        "trajectory_builder": config.trajectory_builders,
        "trainer_adapter": config.trainer_adapters,
    }
    for field, table in tables.items():
        name = getattr(chosen, field)
        if name not in table:
            yield ("finetuning", field), f"{field}s has no entry {name!r}{_nearest(name, table)}"
    reward = chosen.reward_function
    if reward is not None and reward.name not in config.eval.evaluators:
        hint = _nearest(reward.name, config.eval.evaluators)
        yield ("finetuning", "reward_function", "name"), f"eval.evaluators has no entry {reward.name!r}{hint}"


def _without_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without its chosen entries, which are read one by one."""
    plain = {key: value for key, value in values.items() if (key,) not in TABLES and key != "workflow"}
    if isinstance(plain.get("eval"), Mapping):
        plain["eval"] = {key: value for key, value in plain["eval"].items() if key != "evaluators"}
    return {key: value for key, value in plain.items() if value is not None}


def _unknown(model: type[BaseModel], values: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield keys that no class knows, at any depth; also in classes that would pass them over in silence."""
    if not isinstance(values, Mapping):
        return
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    names = {**fields, **model.model_fields}
    open_to_all = model.model_config.get("extra") == "allow"
    for key, value in values.items():
        if key in names:
            yield from _unknown_within(names[key].annotation, value, (*place, str(key)))
        elif not open_to_all or difflib.get_close_matches(str(key), fields, n=1, cutoff=NEAR_ENOUGH):
            yield (*place, str(key)), "is not a setting" + _nearest(str(key), fields)


def _unknown_within(annotation: Any, value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Look into a field: a class, an optional one, a list or a table of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _unknown(annotation, value, place)
        return
    arguments = [part for part in typing.get_args(annotation) if part is not type(None)]
    origin = typing.get_origin(annotation)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _unknown_within(arguments[-1], item, (*place, str(key)))
    elif origin in (list, tuple) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown_within(arguments[0], item, (*place, index))
    elif len(arguments) == 1 and origin not in (dict, list, tuple):
        yield from _unknown_within(arguments[0], value, place)


def _nearest(key: str, known: Iterable[str]) -> str:
    return f"; {nearest(key, map(str, known))}"


def _described(error: ValidationError, place: Place, lines: Mapping[Place, str]) -> Iterator[str]:
    for detail in error.errors():
        if detail["type"] != "extra_forbidden":
            where = (*place, *detail["loc"])
            yield f"  {_line(where, lines)}: {dotted(where)}: {detail['msg'].removeprefix('Value error, ')}"


def _line(place: Place, lines: Mapping[Place, str]) -> str:
    return next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), "not given")
