"""`--reward`, `--grouping` and `--curriculum` as a user gives them → configurations and reward functions.

A file with YAML, alone or under its section; the name of a registered reward; or `rewards.py:function`. Other values
than those in force: `group_size=4,min_group_size=2`.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from rollbus.schemas.config import Config, CurriculumConfig, GroupingConfig, RewardConfig, ScoringConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.streams.rewards.contract import RewardFunction
from rollbus.streams.rewards.registry import Registry, installed

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
        known = ", ".join(sorted(registry))
        raise ConfigurationError(
            f"--reward {text!r} is no file, no `file.py:function` and no registered reward; registered are {known}"
        )
    return _checked(ScoringConfig, _section(Path(text), "scoring"), "--reward"), registry


def grouping_of(text: str, base: GroupingConfig) -> GroupingConfig:
    """Return the grouping that `--grouping` names: a file, or changes to the one in force."""
    return _changed(GroupingConfig, text, "grouping", base)


def curriculum_of(text: str, base: CurriculumConfig) -> CurriculumConfig:
    """Return the curriculum that `--curriculum` names: a mode, a file, or changes to the one in force."""
    if "=" not in text and not Path(text).exists():
        text = f"mode={text}"
    return _changed(CurriculumConfig, text, "curriculum", base)


def registry_of(text: str | None) -> Registry:
    """Return the registered rewards, and the function of `text` where it names one in a file."""
    return installed() if text is None else scoring_of(text, installed())[1]


def _changed(kind: type[C], text: str, section: str, base: C) -> C:
    option = f"--{section}"
    if "=" not in text:
        return _checked(kind, _section(Path(text), section), option)
    plain = base.model_dump(mode="json")
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        plain[name.strip()] = yaml.safe_load(value)
    return _checked(kind, plain, option)


def _checked(kind: type[C], plain: Mapping[str, Any], option: str) -> C:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, one['loc'])) or option}: {one['msg']}" for one in error.errors()]
        raise ConfigurationError(f"{option}: {'; '.join(mistakes)}") from error


def _section(path: Path, section: str) -> dict[str, Any]:
    """Return a file's mapping: the section of that name where it has one, as settings files do."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} holds no mapping; write what stands under `{section}:` in the settings")
    inner = found.get(section, found)
    return inner if isinstance(inner, dict) else {}


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
        source = path.read_bytes()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        call = getattr(module, function)
    except Exception as error:
        raise ConfigurationError(f"--reward {path}:{function} cannot be loaded: {error!r}") from error
    own_hash = hashlib.sha256(source).hexdigest()[:16]
    made = call if isinstance(call, RewardFunction) else RewardFunction(call, version=own_hash)
    given = {each.name: getattr(made, each.name) for each in fields(RewardFunction)}
    return FromFile(**given, path=str(path.resolve()), function=function, source_hash=own_hash)
