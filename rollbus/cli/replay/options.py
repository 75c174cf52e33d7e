"""`--reward`, `--grouping` and `--curriculum` as a user gives them → configurations and reward functions.

A value is a YAML file (whole, or a section of it), the name of a registered reward, `rewards.py:function`, or changes
to what is in force: `group_size=4,min_group_size=2`.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from rollbus.cli.yaml_text import YAML_ERRORS, read_yaml
from rollbus.schemas.errors import ConfigurationError, nearest
from rollbus.schemas.records.config import Config, CurriculumConfig, GroupingConfig, RewardConfig, ScoringConfig
from rollbus.settings_file import describe_mistake, parse_yaml
from rollbus.streams.replay.plan.plan import Changes
from rollbus.streams.rewards.contract import RewardFunction
from rollbus.streams.rewards.registry import Registry, load_registry, reward_function

C = TypeVar("C", bound=Config)


def parse_scoring(text: str, registry: Registry) -> tuple[ScoringConfig, Registry]:
    """Return the scoring that `--reward` names, and the registry with its function."""
    path, _, function = text.rpartition(":")
    if function and path.endswith(".py"):
        name = f"{Path(path).stem}.{function}"
        loaded = _load_function(Path(path), function)
        return ScoringConfig(rewards=(RewardConfig(type=name, name=function),)), {**registry, name: loaded}
    if text in registry:
        name = "reward" if registry[text].reads_feedback else text  # feedback is read by the name of its report
        return ScoringConfig(rewards=(RewardConfig(type=text, name=name),)), registry
    if not _is_file(text):
        raise ConfigurationError(
            f"--reward {text!r} is neither a file, nor `file.py:function`, nor a registered reward; "
            f"{nearest(text, registry)}"
        )
    if text.endswith(".py"):
        raise ConfigurationError(f"--reward {text!r} is a Python file; name its function too: {text}:function")
    return _validate(ScoringConfig, _read_section(Path(text), "scoring"), "--reward"), registry


def parse_grouping(text: str) -> GroupingConfig | Changes:
    """Return the grouping that `--grouping` names: a file, or changes to the one in force."""
    return _parse_changes(GroupingConfig, text, "grouping")


def parse_curriculum(text: str) -> CurriculumConfig | Changes:
    """Return the curriculum that `--curriculum` names: a mode, a file, or changes to the one in force."""
    if "=" not in text and not _is_file(text):
        modes = get_args(CurriculumConfig.model_fields["mode"].annotation)
        if text not in modes:
            raise ConfigurationError(f"--curriculum {text!r} is neither a file nor a mode; {nearest(text, modes)}")
        text = f"mode={text}"
    return _parse_changes(CurriculumConfig, text, "curriculum")


def find_registry(text: str | None) -> Registry:
    """Return the registered rewards, with the function of `text` if it names one in a file."""
    return load_registry() if text is None else parse_scoring(text, load_registry())[1]


def _is_file(text: str) -> bool:
    """Say whether there is something to read, such as a pipe of the shell; a folder is not, nor an empty text."""
    path = Path(text)
    return path.exists() and not path.is_dir()


def _parse_changes(kind: type[C], text: str, section: str) -> C | Changes:
    option = f"--{section}"
    if "=" not in text:
        if not _is_file(text):
            raise ConfigurationError(f"{option} {text!r} is not a file; give one, or changes such as name=value")
        return _validate(kind, _restore_off(_read_section(Path(text), section)), option)
    changes: dict[str, Any] = {}
    for pair in text.split(","):
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not (name and separator):
            raise ConfigurationError(f"{option} {text!r} is not like name=value,name=value")
        if name in changes:
            raise ConfigurationError(f"{option} {text!r} gives {name} twice")
        changes[name] = _parse_value(value, option)
    changes = _restore_off(changes)
    _refuse_values(option, kind, changes)
    return Changes(tuple(changes.items()))


def _restore_off(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the mode `off` as a word: YAML reads it as false."""
    return {**values, **({"mode": "off"} if values.get("mode") is False else {})}


def _parse_value(value: str, option: str) -> Any:
    try:
        return parse_yaml(value)
    except YAML_ERRORS as error:
        raise ConfigurationError(f"{option}: {value!r:.200} is not a value: {error}") from error


def _refuse_values(option: str, kind: type[Config], changes: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for values that are wrong alone; each run checks them together with its own."""
    try:
        kind.model_validate(changes)
    except ValidationError as error:
        alone = [detail for detail in error.errors() if detail["loc"]]
        if alone:
            raise ConfigurationError(_mistakes(option, kind, alone)) from error


def _validate(kind: type[C], plain: Mapping[str, Any], option: str) -> C:
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ConfigurationError(_mistakes(option, kind, error.errors())) from error


def _mistakes(option: str, kind: type[Config], errors: Iterable[Any]) -> str:
    return f"{option}: {'; '.join(describe_mistake(error, kind) for error in errors)}"


def _read_section(path: Path, section: str) -> dict[str, Any]:
    """Return a file's mapping, or the section of that name if it has one, as settings files do."""
    document = read_yaml(path)
    inner = document.get(section, document) if isinstance(document, dict) else document
    if not isinstance(inner, dict):
        raise ConfigurationError(f"{path} holds no mapping; write the fields of `{section}:` as in the settings")
    return inner


@dataclass(frozen=True, slots=True)
class FromFile(RewardFunction):
    """A function of a file; another process loads it from that file again."""

    path: str = ""
    function: str = ""
    source_hash: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, (self.path, self.function, self.source_hash)


def _load_again(path: str, function: str, source_hash: str) -> RewardFunction:
    loaded = _load_function(Path(path), function)
    if loaded.source_hash != source_hash:
        raise ConfigurationError(f"--reward {path}:{function} was changed while the replay began; start it again")
    return loaded


def _load_function(path: Path, function: str) -> FromFile:
    """Load a function from a file; its version is the file's hash, so another text is another reward."""
    try:
        own_hash = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        spec = importlib.util.spec_from_file_location(f"rollbus_reward_{path.stem}_{own_hash}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for theirs there
        spec.loader.exec_module(module)
        reward = reward_function(getattr(module, function), version=own_hash)
    except Exception as error:
        raise ConfigurationError(f"--reward {path}:{function} cannot be loaded: {error!r}") from error
    values = {field.name: getattr(reward, field.name) for field in fields(RewardFunction)}
    return FromFile(**values, path=str(path.resolve()), function=function, source_hash=own_hash)
