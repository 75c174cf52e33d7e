"""One YAML file and the environment to one frozen settings object; every mistake reported together, with its place.

`${VAR}` and `${VAR:-default}` in a value take it from the environment. `ROLLBUS_KAFKA__BOOTSTRAP_SERVERS=…` sets
`kafka: bootstrap_servers:` over the file: two underscores go one level down.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rollbus.schemas.errors import ConfigurationError, nearest

ENVIRONMENT_PREFIX = "ROLLBUS_"
_LEVEL = "__"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

M = TypeVar("M", bound=BaseModel)
Place = tuple[str | int, ...]
"""Keys and indices from the top of the file to a value."""


def load_settings(model: type[M], path: Path | None, environment: Mapping[str, str]) -> M:
    """Return the settings; raises ConfigurationError that lists every mistake, one line each."""
    values, lines, mistakes = read_document(path, environment)
    mistakes += _one_underscore(model, environment)
    for place, value in _overrides(model, environment):
        _set(values, place, value)
        lines[place] = f"environment {_variable(place)}"
    if not mistakes:
        try:
            return model.model_validate(values)
        except ValidationError as error:
            mistakes = [_describe(detail, lines, model) for detail in error.errors()]
    where = str(path) if path else "the environment"
    raise ConfigurationError("\n".join([f"{len(mistakes)} mistake(s) in the settings from {where}:", *mistakes]))


def read_document(
    path: Path | None, environment: Mapping[str, str]
) -> tuple[dict[str, Any], dict[Place, str], list[str]]:
    """Return a YAML file's values with its `${VAR}` filled in, the line of each place, and the mistakes so far."""
    if path is None:
        return {}, {}, []
    try:
        node = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigurationError(f"settings file {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"settings file {path} is not YAML: {error}") from error
    lines: dict[Place, str] = {}
    mistakes: list[str] = []
    if node is None:
        return {}, lines, mistakes
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(f"settings file {path} must be a mapping of sections, line {node.start_mark.line + 1}")
    values = _value(node, (), lines, mistakes, environment)
    return values, lines, mistakes


def _value(
    node: yaml.Node, place: Place, lines: dict[Place, str], mistakes: list[str], environment: Mapping[str, str]
) -> Any:
    lines[place] = f"line {node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        values = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in values:
                mistakes.append(f"  line {key_node.start_mark.line + 1}: {dotted((*place, key))} is given twice")
            values[key] = _value(value_node, (*place, key), lines, mistakes, environment)
        return values
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*place, i), lines, mistakes, environment) for i, item in enumerate(node.value)]
    text = node.value
    filled = _fill(text, place, lines, mistakes, environment)
    if filled != text:
        return yaml.safe_load(filled) if filled.strip() else filled
    return yaml.SafeLoader("").construct_object(node)


def _fill(text: str, place: Place, lines: dict[Place, str], mistakes: list[str], environment: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name in environment:
            return environment[name]
        if default is None:
            mistakes.append(f"  {lines[place]}: {dotted(place)}: ${{{name}}} is not set in the environment")
        return default or ""

    return _VARIABLE.sub(replace, text)


def _overrides(model: type[BaseModel], environment: Mapping[str, str]) -> Iterator[tuple[Place, Any]]:
    """Yield what the environment sets: variables whose first word is a section or field of the settings."""
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        place = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split(_LEVEL))
        if place[0] in model.model_fields:
            yield place, yaml.safe_load(text) if text.strip() else text


def _one_underscore(model: type[BaseModel], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a mistake for each variable that would set a field if it had two underscores between the levels."""
    fields = {
        f"{ENVIRONMENT_PREFIX}{section}_{field}".upper(): _variable((section, field))
        for section in model.model_fields
        for field in _fields_at((section,), model)
    }
    for name in sorted(environment.keys() & fields.keys()):
        yield f"  environment {name}: is not a setting; did you mean {fields[name]}?"


def _variable(place: Place) -> str:
    return ENVIRONMENT_PREFIX + _LEVEL.join(map(str, place)).upper()


def _set(values: dict[str, Any], place: Place, value: Any) -> None:
    for key in place[:-1]:
        values = values.setdefault(str(key), {})
    values[str(place[-1])] = value


def _describe(detail: Any, lines: Mapping[Place, str], model: type[BaseModel]) -> str:
    place: Place = tuple(part for part in detail["loc"])
    known = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), "not given")
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "is not a setting" + _nearest(place, model)
    elif "input" in detail and isinstance(detail["input"], str | int | float | bool) and not _secret(place):
        message = f"{message} (got {detail['input']!r})"
    return f"  {known}: {dotted(place)}: {message}"


def _nearest(place: Place, model: type[BaseModel]) -> str:
    fields = _fields_at(place[:-1], model)
    return f"; {nearest(str(place[-1]), fields)}"


def _fields_at(place: Place, model: type[BaseModel]) -> list[str]:
    """Return the field names of the section at a place."""
    section: Any = model
    for key in place:
        if isinstance(key, int):
            continue
        field = getattr(section, "model_fields", {}).get(key)
        section = _section(field.annotation) if field else None
    return list(getattr(section, "model_fields", {}))


def _section(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _section(part))), None)


def _secret(place: Place) -> bool:
    return any(word in str(part) for part in place for word in ("password", "token", "secret", "key"))


def dotted(place: Place) -> str:
    """Return a place as people write it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "(top)"
