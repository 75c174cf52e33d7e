"""A YAML file and `-o` overrides → the toolkit's configuration and ours; every mistake reported together.

The toolkit reads, fills in and checks its sections itself. Here the guides' types are put on the bus, overrides reach
every section, and a key that no class knows is a mistake, with its line and the nearest name.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from nat.cli.type_registry import GlobalTypeRegistry
from nat.data_models.config import Config
from nat.data_models.dataset_handler import (
    EvalDatasetCsvConfig,
    EvalDatasetCustomConfig,
    EvalDatasetJsonConfig,
    EvalDatasetJsonlConfig,
    EvalDatasetParquetConfig,
    EvalDatasetXlsConfig,
)
from nat.data_models.evaluate_config import EvalConfig
from nat.runtime.loader import PluginTypes, discover_entrypoints
from nat.utils.io.yaml_tools import yaml_load
from pydantic import BaseModel, ValidationError

from rollbus.nemo import troubles
from rollbus.nemo.components import ART_TYPES, REFUSED_FIELDS, BusConfig, LogTrajectoryBuilderConfig
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.toolkit_version import require_toolkit
from rollbus.schemas.errors import ConfigurationError, nearest
from rollbus.settings_file import Place, describe_mistake, format_place, line_of, parse_text, read_document

logger = logging.getLogger(__name__)

REPLACED = "nat.plugins.openpipe.register"
"""The toolkit's own ART plugin: to import it is to import ART and torch, which takes seconds."""
COMPONENTS = ("trajectory_builders", "trainer_adapters", "trainers")
"""Sections with a `_type` of the guides; an entry is chosen by `finetuning` under the name without the s."""


DATASETS: dict[str, Any] = {
    ".json": EvalDatasetJsonConfig,
    ".jsonl": EvalDatasetJsonlConfig,
    ".csv": EvalDatasetCsvConfig,
    ".parquet": EvalDatasetParquetConfig,
    ".xlsx": EvalDatasetXlsConfig,
}
"""By a file's ending."""


def load_plan(path: Path, overrides: Iterable[tuple[str, str]] = ()) -> Plan:
    """Return what a file says; raises ConfigurationError that lists every mistake, one line each."""
    require_toolkit()
    content, lines, first_mistakes = read_document(path, os.environ)
    if not content:
        raise ConfigurationError(f"{path} is empty; write a configuration of the toolkit into it")
    try:
        values = yaml_load(path)
    except Exception as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for key, text in overrides:
        first_mistakes += _override(values, key, text, lines)
    first_mistakes += _take_odd_finetuning(values, lines)
    place, section = _take_rollbus(values)
    _register_components()
    _import_modules(section, path)
    EvalConfig.rebuild_annotations()  # type: ignore[no-untyped-call]  # what was registered after the toolkit's own plugins
    Config.model_rebuild(force=True)
    _put_on_bus(values)
    details: list[tuple[Place, Any, Any, type[BaseModel]]] = []
    try:
        bus = BusConfig.model_validate(section)
    except ValidationError as error:
        details += [(place, detail, section, BusConfig) for detail in error.errors()]
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        details += [((), detail, values, Config) for detail in _by_field(error)]
    other_details = [detail for detail in details if not _is_of(detail, first_mistakes, lines)]
    mistakes = [*first_mistakes, *(_describe_error(*detail, lines) for detail in other_details)]
    if not mistakes:
        problems = [*_unknown(config, values, ()), *_dangling(config)]
        mistakes = [f"  {line_of(place, lines)}: {format_place(place)}: {message}" for place, message in problems]
    if mistakes:
        raise ConfigurationError("\n".join([f"{len(mistakes)} mistake(s) in the configuration {path}:", *mistakes]))
    for part in (bus, *config.trajectory_builders.values()):
        if isinstance(part, BusConfig | LogTrajectoryBuilderConfig) and part.settings_file is not None:
            part.settings_file = path.parent / part.settings_file
    return Plan(config, bus)


def with_dataset(config: Config, dataset: str | Path | None) -> Config:
    """Return the configuration with another dataset, read by its ending: the toolkit reads every one as JSON.

    One of `_type: custom` is read by the user's function whatever its ending, and another ending as the configured
    dataset is; raises ConfigurationError where none is configured.
    """
    configured = config.eval.general.dataset
    if dataset is None:
        return config
    if isinstance(configured, EvalDatasetCustomConfig):
        here = {"file_path": str(dataset), "s3": None, "remote_file_path": None}
        return _with_dataset_config(config, configured.model_copy(update=here))
    kind = DATASETS.get(Path(dataset).suffix.lower(), None if configured is None else type(configured))
    if kind is None:
        raise ConfigurationError(
            f"dataset {dataset} ends in none of {', '.join(DATASETS)}; rename it, or set `eval.general.dataset`"
        )
    shared = {} if configured is None else configured.model_dump(include={"id_key", "structure", "filter"})
    return _with_dataset_config(config, kind(file_path=str(dataset), **shared))


def _with_dataset_config(config: Config, dataset: Any) -> Config:
    general = config.eval.general.model_copy(update={"dataset": dataset})
    return config.model_copy(update={"eval": config.eval.model_copy(update={"general": general})})


def _take_rollbus(values: dict[str, Any]) -> tuple[Place, Any]:
    """Take out what only rollbus has, and say where it was: in a section, or under the trainer of `nat finetune`."""
    if section := values.pop("rollbus", None):
        return ("rollbus",), section
    tuning, trainers = values.get("finetuning"), values.get("trainers")
    name = tuning.get("trainer") if isinstance(tuning, Mapping) else None
    trainer = trainers.get(name) if isinstance(trainers, Mapping) and isinstance(name, str) else None
    if isinstance(trainer, dict) and trainer.get("_type") == "rollbus_trainer":
        return ("trainers", str(name), "bus"), trainer.pop("bus", None) or {}
    return ("rollbus",), {}


def _override(values: dict[str, Any], key: str, text: str, lines: dict[Place, str]) -> list[str]:
    """Set one dotted key, as YAML reads its value; a value that is not YAML is text."""
    place = tuple(key.split("."))
    section: Any = values
    for depth, part in enumerate(place[:-1]):
        if section.get(part) is None:  # also one that is there and blank
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            return [f"  -o {key}: {format_place(place[: depth + 1])} is a value, not a section"]
    section[place[-1]] = parse_text(text)
    lines[place] = f"-o {key}"
    return []


def _take_odd_finetuning(values: dict[str, Any], lines: Mapping[Place, str]) -> list[str]:
    """Take `finetuning` out where it has no settings: the toolkit asks it for them before it checks what it is."""
    if isinstance(values.get("finetuning", {}), dict):
        return []
    del values["finetuning"]
    return [f"  {line_of(('finetuning',), lines)}: finetuning: Input should be a valid dictionary"]


def _register_components() -> None:
    """Register the components of every installed plugin, as the toolkit does, but not those that ours replace."""
    with GlobalTypeRegistry.get().pause_registration_changed_hooks():
        for entry in discover_entrypoints(PluginTypes.CONFIG_OBJECT):
            if entry.module != REPLACED:
                try:
                    entry.load()
                except Exception:
                    logger.warning("plugin %r cannot be imported", entry.name, exc_info=True)


def _import_modules(section: Any, path: Path) -> None:
    """Import what `rollbus: imports:` names; the file's own folder is looked into first, as a script's is."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    names = section.get("imports", ()) if isinstance(section, Mapping) else ()
    for name in names if isinstance(names, list | tuple) else (names,):
        if not isinstance(name, str):
            continue  # a mistake, which `BusConfig` names with its place
        try:
            import_module(name)
        except Exception as error:  # a module of the user's may raise anything
            crash = troubles.describe_crash(error)
            raise ConfigurationError(
                f"rollbus: imports: module {name!r} cannot be imported: {crash}; it must be next to the configuration "
                f"file, in PYTHONPATH or be installed in {sys.executable}, the Python that runs this command"
            ) from error


def _put_on_bus(values: dict[str, Any]) -> None:
    for table in COMPONENTS:
        section = values.get(table)
        for entry in section.values() if isinstance(section, dict) else ():
            if isinstance(entry, dict) and isinstance(kind := entry.get("_type"), str | None):
                entry["_type"] = ART_TYPES.get(kind or "", kind)


def _unknown(model: Any, values: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield keys that no class knows, at any depth; also in classes that would pass them over in silence."""
    if isinstance(model, BaseModel) and isinstance(values, Mapping):
        fields = {field.alias or name: name for name, field in type(model).model_fields.items()}
        names = {**{name: name for name in fields.values()}, **fields}
        is_open = type(model).model_config.get("extra") == "allow"
        for key, value in values.items():
            if str(key) in names:
                yield from _unknown(getattr(model, names[str(key)]), value, (*place, str(key)))
            elif not is_open and not _is_alias(model, str(key)):
                yield (*place, str(key)), f"is not a setting; {nearest(str(key), fields)}"
    elif isinstance(model, Mapping) and isinstance(values, Mapping):
        for key, value in values.items():
            yield from _unknown(model.get(key), value, (*place, str(key)))


def _is_alias(model: BaseModel, key: str) -> bool:
    choices = (getattr(field.validation_alias, "choices", ()) for field in type(model).model_fields.values())
    return any(key in choice for choice in choices)


def _dangling(config: Config) -> Iterator[tuple[Place, str]]:
    """Yield what `finetuning` says that cannot be: names without an entry in their table, the command line's part."""
    tuning = config.finetuning
    if tuning.run_configuration is not None:
        yield ("finetuning", "run_configuration"), "is set by the command line; give its options there"
    if not tuning.enabled:
        return
    for table in COMPONENTS:
        field = table.removesuffix("s")
        name, entries = getattr(tuning, field), getattr(config, table)
        if name not in entries:
            yield ("finetuning", field), f"{table} has no entry {name!r}; {nearest(str(name), entries)}"
    reward, entries = tuning.reward_function, config.eval.evaluators
    builder = config.trajectory_builders.get(tuning.trajectory_builder or "")
    if reward is None:
        yield ("finetuning", "reward_function"), "is not set; name an entry of eval.evaluators"
    elif reward.name not in entries and not isinstance(builder, LogTrajectoryBuilderConfig):  # rewards on the log
        hint = nearest(reward.name, entries)
        yield ("finetuning", "reward_function", "name"), f"eval.evaluators has no entry {reward.name!r}; {hint}"


def _is_of(detail: tuple[Place, Any, Any, type[BaseModel]], mistakes: list[str], lines: Mapping[Place, str]) -> bool:
    """Say whether one of pydantic's errors is of a value that is a mistake already, such as an unset variable."""
    section, error, values, _ = detail
    place: Place = (*section, *_place(error["loc"], values))
    texts = (f"  {line_of(at, lines)}: {format_place(at)}: " for at in (place, (*place, "_type")))
    return any(mistake.startswith(text) for text in texts for mistake in mistakes)


def _by_field(error: ValidationError) -> Iterator[Any]:
    """Yield pydantic's errors; one that refuses several fields is one of each of them."""
    for detail in error.errors():
        if detail["type"] != REFUSED_FIELDS:
            yield detail
            continue
        for name, message in detail["ctx"]["messages"].items():
            yield {**detail, "loc": (*detail["loc"], name), "msg": message}


def _describe_error(
    section: Place, detail: Any, values: Any, model: type[BaseModel], lines: Mapping[Place, str]
) -> str:
    within = _place(detail["loc"], values)
    place: Place = (*section, *within)
    if detail["type"] == "union_tag_not_found":
        mistake = f"{format_place(place)}: has no `_type`"
    elif detail["type"] == "union_tag_invalid":
        tags = [part.strip(" '") for part in detail["ctx"]["expected_tags"].split(",") if "/" not in part]
        known_types = [*tags, *(type_name for type_name, ours in ART_TYPES.items() if ours in tags)]
        mistake = (
            f"{format_place(place)}: has no type {detail['ctx']['tag']!r}; {nearest(detail['ctx']['tag'], known_types)}"
        )
    else:
        mistake = describe_mistake({**detail, "loc": within}, model)
        mistake = f"{format_place(section)}{'.' if within else ': '}{mistake}" if section else mistake
    return f"  {line_of(place, lines)}: {mistake}"


def _place(location: Place, values: Any) -> Place:
    """Return where a mistake is in the file: pydantic also names the `_type` on the way."""
    place: list[str | int] = []
    for number, key in enumerate(location, start=1):
        inner = values.get(key) if isinstance(values, Mapping) else None
        if inner is not None or number == len(location) or isinstance(values, list):
            place.append(key)
            values = inner
    return tuple(place)
