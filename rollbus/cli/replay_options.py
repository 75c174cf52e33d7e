"""`--reward`, `--grouping` and `--curriculum` as a user gives them → configurations and reward functions.

A file with YAML, alone or under its section; the name of a registered reward; or `rewards.py:function`. Other values
than those in force: `group_size=4,min_group_size=2`.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError

from rollbus.cli.yaml_text import NOT_READ, read_yaml
from rollbus.schemas.config import Config, CurriculumConfig, GroupingConfig, RewardConfig, ScoringConfig
from rollbus.schemas.errors import ConfigurationError, nearest
from rollbus.streams.replay.changes import Changes
from rollbus.streams.rewards.contract import RewardFunction
from rollbus.streams.rewards.registry import Registry, installed, reward_function

C = TypeVar("C", bound=Config)


def scoring_of(text: str, registry: Registry) -> tuple[ScoringConfig, Registry]:
    """Return the scoring that `--reward` names, and the registry with its function."""
    path, _, function = text.partition(":")
    if function and path.endswith(".py"):
        name = f"{Path(path).stem}.{function}"
        loaded = _loaded(Path(path), function)
        return ScoringConfig(rewards=(RewardConfig(type=name, name=function),)), {**registry, name: loaded}
    if text in registry:
        name = "reward" if registry[text].reads_feedback else text  # feedback is read by the name of its report
        return ScoringConfig(rewards=(RewardConfig(type=text, name=name),)), registry
    if not Path(text).exists():
        raise ConfigurationError(
            f"--reward {text!r} is no file, no `file.py:function` and no registered reward; {nearest(text, registry)}"
        )
    if path.endswith(".py"):
        raise ConfigurationError(f"--reward {text!r} is a Python file; name its function too: {text}:function")
    return _checked(ScoringConfig, _section(Path(text), "scoring"), "--reward"), registry


def grouping_of(text: str) -> GroupingConfig | Changes:
    """Return the grouping that `--grouping` names: a file, or changes to the one in force."""
    return _changed(GroupingConfig, text, "grouping")


def curriculum_of(text: str) -> CurriculumConfig | Changes:
    """Return the curriculum that `--curriculum` names: a mode, a file, or changes to the one in force."""
    if "=" not in text and not Path(text).exists():
        modes = get_args(CurriculumConfig.model_fields["mode"].annotation)
        if text not in modes:
            raise ConfigurationError(f"--curriculum {text!r} is no file and no mode; {nearest(text, modes)}")
        text = f"mode={text}"
    return _changed(CurriculumConfig, text, "curriculum")


def registry_of(text: str | None) -> Registry:
    """Return the registered rewards, and the function of `text` where it names one in a file."""
    return installed() if text is None else scoring_of(text, installed())[1]


def _changed(kind: type[C], text: str, section: str) -> C | Changes:
    option = f"--{section}"
    if "=" not in text:
        if not Path(text).exists():
            raise ConfigurationError(f"{option} {text!r} is no file; write one, or changes such as name=value")
        return _checked(kind, _worded(_section(Path(text), section)), option)
    changes: dict[str, Any] = {}
    for pair in text.split(","):
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not (name and separator):
            raise ConfigurationError(f"{option} {text!r} is not like name=value,name=value")
        if name in changes:
            raise ConfigurationError(f"{option} {text!r} gives {name} twice")
        changes[name] = _plain(value, option)
    changes = _worded(changes)
    _refuse(option, kind, changes)
    return Changes(tuple(changes.items()))


def _worded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Take the mode `off` for the word that it is: YAML takes it for a truth value, and no other of these settings."""
    return {**values, **({"mode": "off"} if values.get("mode") is False else {})}


def _plain(value: str, option: str) -> Any:
    try:
        return yaml.safe_load(value)
    except NOT_READ as error:
        raise ConfigurationError(f"{option}: {value!r:.200} is no value: {error}") from error


def _refuse(option: str, kind: type[Config], changes: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for values that no section can have; what they do beside others, each run says."""
    try:
        kind.model_validate(changes)
    except ValidationError as error:
        alone = [one for one in error.errors() if one["loc"]]
        if alone:
            raise ConfigurationError(_mistakes(option, kind, alone)) from error


def _checked(kind: type[C], plain: Mapping[str, Any], option: str) -> C:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ConfigurationError(_mistakes(option, kind, error.errors())) from error


def _mistakes(option: str, kind: type[Config], errors: Iterable[Any]) -> str:
    return f"{option}: {'; '.join(_mistake(kind, one) for one in errors)}"


def _mistake(kind: type[Config], one: Any) -> str:
    place, message = ".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")
    if one["type"] == "extra_forbidden":
        known = f"; {nearest(place, kind.model_fields)}" if len(one["loc"]) == 1 else ""
        return f"{place} is not a setting{known}"
    if not place:
        return str(message)
    given = f" (got {one['input']!r})" if isinstance(one["input"], str | int | float) else ""
    return f"{place}: {message}{given}"


def _section(path: Path, section: str) -> dict[str, Any]:
    """Return a file's mapping: the section of that name where it has one, as settings files do."""
    found = read_yaml(path)
    inner = found.get(section, found) if isinstance(found, dict) else found
    if not isinstance(inner, dict):
        raise ConfigurationError(f"{path} holds no mapping; write what stands under `{section}:` in the settings")
    return inner


@dataclass(frozen=True, slots=True)
class FromFile(RewardFunction):
    """A function of a file, which another process loads again from there."""

    path: str = ""
    function: str = ""
    source_hash: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded_again, (self.path, self.function, self.source_hash)


def _loaded_again(path: str, function: str, source_hash: str) -> RewardFunction:
    found = _loaded(Path(path), function)
    if found.source_hash != source_hash:
        raise ConfigurationError(f"--reward {path}:{function} was changed while the replay began; give it again")
    return found


def _loaded(path: Path, function: str) -> FromFile:
    """Load a function from a file; its version is the file's hash, so another text is another reward."""
    try:
        own_hash = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        spec = importlib.util.spec_from_file_location(f"rollbus_reward_{path.stem}_{own_hash}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for theirs there
        spec.loader.exec_module(module)
        made = reward_function(getattr(module, function), version=own_hash)
    except Exception as error:
        raise ConfigurationError(f"--reward {path}:{function} cannot be loaded: {error!r}") from error
    given = {each.name: getattr(made, each.name) for each in fields(RewardFunction)}
    return FromFile(**given, path=str(path.resolve()), function=function, source_hash=own_hash)
