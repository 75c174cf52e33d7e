"""One YAML file and the environment → one frozen settings object; every mistake is reported, with its place.

`${VAR}` and `${VAR:-default}` in a value take it from the environment. `ROLLBUS_KAFKA__BOOTSTRAP_SERVERS=…` sets
`kafka: bootstrap_servers:` over the file: two underscores go one level down. If a setting is a text, the value from the
environment is that text, letter by letter: a password may look like YAML.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr, ValidationError

from rollbus.schemas.errors import ConfigurationError, nearest

ENVIRONMENT_PREFIX = "ROLLBUS_"
MOST_CHARACTERS, MOST_VALUES = 1_000_000, 100_000
"""Of a YAML file: a hundred times the longest settings."""
MOST_PLACES = 3
"""That a message about an unknown name lists: one that stands at more says too little."""
_LEVEL = "__"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_YAML_TAG, _NULL_TAG = "tag:yaml.org,2002:", "tag:yaml.org,2002:null"
_NULLS = frozenset({"null", "~"})

M = TypeVar("M", bound=BaseModel)
Place = tuple[str | int, ...]
"""Keys and indices from the top of the file to a value."""
IsText = Callable[[Place], bool]
"""Whether the setting at a place is a text."""


class _Loader(yaml.SafeLoader):
    """The safe loader, whose every complaint about a value is a YAMLError or a ValueError."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (LookupError, AttributeError) as error:  # what a tag's constructor raises for a text that does not fit
            tag = node.tag.replace(_YAML_TAG, "!!")
            problem = f"the value is not what its tag {tag} says; leave the tag out"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def load_settings(model: type[M], path: Path | None, environment: Mapping[str, str]) -> M:
    """Return the settings; raises ConfigurationError that lists every mistake, one line each."""
    values, lines, mistakes = read_settings(model, path, environment)
    if not mistakes:
        try:
            return model.model_validate(values)
        except ValidationError as error:
            mistakes = [_describe(detail, lines, model) for detail in error.errors()]
    where = str(path) if path else "the environment"
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    raise ConfigurationError("\n".join([f"{count} in the settings from {where}:", *mistakes]))


def read_settings(
    model: type[BaseModel], path: Path | None, environment: Mapping[str, str]
) -> tuple[dict[str, Any], dict[Place, str], list[str]]:
    """Return what `read_document` returns, with the environment's values over it."""
    is_text = partial(_is_text, model)
    values, lines, mistakes = read_document(path, environment, is_text)
    mistakes += [*_one_underscore(model, environment), *_no_section(model, environment)]
    for place, text in _overrides(model, environment):
        lines[place] = f"environment {_variable(place)}"
        try:
            _set_value(values, place, parse_text(text, place, is_text))
        except _NoSectionError as error:
            mistakes.append(f"  {lines[place]}: {error}")
    return values, lines, mistakes


def read_document(
    path: Path | None, environment: Mapping[str, str], is_text: IsText = lambda place: False
) -> tuple[dict[str, Any], dict[Place, str], list[str]]:
    """Return a YAML file's values with its `${VAR}` filled in, the line of each place, and the mistakes so far."""
    if path is None:
        return {}, {}, []
    try:
        return _document(path, environment, is_text)
    except RecursionError:
        raise ConfigurationError(
            f"settings file {path} is nested without end; does a part of it contain itself by an *anchor?"
        ) from None


def parse_yaml(text: str) -> Any:
    """Return what a YAML text holds; raises YAMLError or ValueError, also where it stands for too much."""
    try:
        refuse_growth(yaml.compose(text, Loader=_Loader))
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise ValueError("it is nested too deep, or contains itself") from error


def read_text(path: Path) -> str:
    """Return a file's text; raises OSError, or ValueError for one that is too long or no text."""
    with path.open(encoding="utf-8") as file:
        text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"more than {MOST_CHARACTERS} characters")
    return text


def refuse_growth(node: yaml.Node | None) -> None:
    """Raise ValueError for a document whose aliases stand for more values than anybody writes."""
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node) -> int:
        if id(node) not in sizes:
            below = node.value if isinstance(node, yaml.CollectionNode) else ()
            children = (child for item in below for child in (item if isinstance(item, tuple) else (item,)))
            sizes[id(node)] = 1 + sum(map(size_of, children))
        return sizes[id(node)]

    if node is not None and size_of(node) > MOST_VALUES:
        raise ValueError(f"its *aliases stand for more than {MOST_VALUES} values")


def _document(
    path: Path, environment: Mapping[str, str], is_text: IsText
) -> tuple[dict[str, Any], dict[Place, str], list[str]]:
    try:
        node = yaml.compose(read_text(path), Loader=_Loader)
        refuse_growth(node)
    except OSError as error:
        raise ConfigurationError(f"settings file {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"settings file {path} is not YAML: {error}") from error
    lines: dict[Place, str] = {}
    mistakes: list[str] = []
    if node is None:
        return {}, lines, mistakes
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(f"settings file {path} must be a mapping of sections, line {node.start_mark.line + 1}")
    return _Reading(lines, mistakes, environment, is_text).value(node, ()), lines, mistakes


@dataclass(frozen=True, slots=True)
class _Reading:
    """Turns one file's YAML into values."""

    lines: dict[Place, str]
    mistakes: list[str]
    environment: Mapping[str, str]
    is_text: IsText

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.lines[place] = f"line {node.start_mark.line + 1}"
        if isinstance(node, yaml.MappingNode):
            values = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                if key in values:
                    self.mistakes.append(
                        f"  line {key_node.start_mark.line + 1}: {format_place((*place, key))} is given twice"
                    )
                values[key] = self.value(value_node, (*place, key))
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        filled_text = self._fill_variables(node.value, place)
        return (
            parse_text(filled_text, place, self.is_text) if filled_text != node.value else self._parse_node(node, place)
        )

    def _parse_node(self, node: yaml.Node, place: Place) -> Any:
        """Return a value of the file itself; `off` and 7 are texts if the setting is a text."""
        is_bare = getattr(node, "style", None) is None
        if is_bare and node.tag.startswith(_YAML_TAG) and node.tag != _NULL_TAG and self.is_text(place):
            return node.value
        try:
            return _Loader("").construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self.mistakes.append(f"  {self.lines[place]}: {format_place(place)}: {getattr(error, 'problem', error)}")
            return None

    def _fill_variables(self, text: str, place: Place) -> str:
        def replace(match: re.Match[str]) -> str:
            name, default = match.groups()
            if name in self.environment:
                return self.environment[name]
            if default is None:
                self.mistakes.append(
                    f"  {self.lines[place]}: {format_place(place)}: ${{{name}}} is not set in the environment"
                )
            return default or ""

        return _VARIABLE.sub(replace, text)


def parse_text(text: str, place: Place = (), is_text: IsText = lambda place: False) -> Any:
    """Return a value of the environment: parsed as YAML, unless the setting is a text or the value is not YAML."""
    if not text.strip() or (text not in _NULLS and is_text(place)):
        return text
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError):
        return text


def count_overrides(model: type[BaseModel], environment: Mapping[str, str]) -> int:
    """Return how many variables of the environment win over the file."""
    return sum(1 for _ in _overrides(model, environment))


def _overrides(model: type[BaseModel], environment: Mapping[str, str]) -> Iterator[tuple[Place, str]]:
    """Yield what the environment sets: variables whose first word is a section or field of the settings."""
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        place = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split(_LEVEL))
        if place[0] in model.model_fields:
            yield place, text


def _one_underscore(model: type[BaseModel], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a mistake for each variable that would set a field if it had two underscores between the levels."""
    fields = {
        f"{ENVIRONMENT_PREFIX}{section}_{field}".upper(): _variable((section, field))
        for section in model.model_fields
        for field in _fields_at((section,), model)
    }
    for name in sorted(environment.keys() & fields.keys()):
        yield f"  environment {name}: is not a setting; did you mean {fields[name]}?"


def _no_section(model: type[BaseModel], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a mistake for each variable with two underscores whose first word is not a section."""
    for name in sorted(environment):
        first, below, _ = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition(_LEVEL)
        if name.startswith(ENVIRONMENT_PREFIX) and below and first not in model.model_fields:
            yield f"  environment {name}: {first} is not a section; {nearest(first, list(model.model_fields))}"


def _variable(place: Place) -> str:
    return ENVIRONMENT_PREFIX + _LEVEL.join(map(str, place)).upper()


class _NoSectionError(Exception):
    """The value at a place has no names below it."""


def _set_value(values: dict[str, Any], place: Place, value: Any) -> None:
    for depth, key in enumerate(place[:-1], start=1):
        if values.get(str(key)) is None:  # not given, or an empty section
            values[str(key)] = {}
        values = values[str(key)]
        if not isinstance(values, dict):
            above = place[:depth]
            raise _NoSectionError(f"{format_place(above)} holds no names; set it whole, by {_variable(above)}")
    values[str(place[-1])] = value


def _describe(detail: Any, lines: Mapping[Place, str], model: type[BaseModel]) -> str:
    return f"  {line_of(tuple(detail['loc']), lines)}: {describe_mistake(detail, model)}"


def line_of(place: Place, lines: Mapping[Place, str]) -> str:
    """Say where a value is given, or the section that is nearest to it."""
    return next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), "not given")


def describe_mistake(detail: Any, model: type[BaseModel]) -> str:
    """Return one of pydantic's errors in words: the place, the mistake, and the nearest name."""
    place: Place = tuple(detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] in ("dataclass_type", "model_type", "model_attributes_type"):
        message = "Input should have settings of its own, such as {name: value}"
    if detail["type"] == "extra_forbidden":
        message = f"is not a setting; {_nearest_setting(place, model)}"
    elif detail["type"] == "tuple_type" and not _is_secret(place, model):
        message = f"Input should be a list, such as [{detail['input']}]"
    elif "input" in detail and isinstance(detail["input"], str | int | float | bool) and not _is_secret(place, model):
        message = f"{message} (got {detail['input']!r})"
    return f"{format_place(place)}: {message}" if place else message


def _nearest_setting(place: Place, model: type[BaseModel]) -> str:
    """Return the end of a message about an unknown setting: where else its name is one, or the nearest name here."""
    name = str(place[-1])
    others = [".".join(other) for other in _paths(model) if other[-1] == name]
    if 0 < len(others) <= MOST_PLACES:
        return f"did you mean {' or '.join(others)}?"
    return nearest(name, _fields_at(place[:-1], model))


def _paths(model: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead to each section and setting."""
    for name, field in model.model_fields.items():
        yield (*place, name)
        section = _section(field.annotation)
        if section is not None:
            yield from _paths(section, (*place, name))


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
    return next((section for part in getattr(annotation, "__args__", ()) if (section := _section(part))), None)


def _is_text(model: type[BaseModel], place: Place) -> bool:
    kinds = list(_kinds(model, place))
    return bool(kinds) and all(
        kind in (str, SecretStr, Path)
        or (get_origin(kind) is Literal and all(isinstance(argument, str) for argument in get_args(kind)))
        for kind in kinds
    )


def _kinds(annotation: Any, place: Place) -> Iterator[Any]:
    """Yield the types that a value at a place below a type may have, None apart."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, UnionType):
        for part in arguments[:1] if origin is Annotated else arguments:
            yield from _kinds(part, place)
    elif not place:
        yield from () if annotation is NoneType else (annotation,)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(place[0]))
        yield from _kinds(field.annotation, place[1:]) if field else ()
    elif element_types := [part for part in arguments if part is not Ellipsis]:
        yield from _kinds(element_types[-1], place[1:])


def _is_secret(place: Place, model: type[BaseModel]) -> bool:
    """Say whether a value must not be printed: by its name, or since the setting is a secret, or a list of them."""
    if any(word in str(part) for part in place for word in ("password", "token", "secret", "key")):
        return True
    return any(kind is SecretStr for below in ((), (0,)) for kind in _kinds(model, (*place, *below)))


def format_place(place: Place) -> str:
    """Return a place as people write it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "(top)"
