"""Which files are a model, and which of their settings no loader may see: data alone, nothing that runs or is fetched.

transformers reads the code that a configuration names, if it may; two published advisories on 5.2.0 are of
configurations that make it do so although `trust_remote_code` is False. ART holds that release. So no configuration
that asks for it reaches any loader: it is refused here, by the name of its field.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import parse_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Which file holds which weight: of a base model in several files; and of ours, so that a reader does not take the
optimizer's state for weights."""
ADAPTER_CONFIG = "adapter_config.json"
SETTINGS_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.json")
MODEL_FILES = frozenset(
    {
        *SETTINGS_FILES,
        *("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt"),
        *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    }
)
"""What a loader of ours reads in addition to the weights; nothing else goes into the cache or a checkpoint."""
RUNS_CODE = frozenset(
    {"auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "kernel_config", "use_kernels"}
)
"""Settings that name code, or allow it."""
_IMPLEMENTATION = "implementation"
"""Ends the names of settings that choose a kernel; one with a slash or a colon would be fetched from a hub and run."""
_HUB_SNAPSHOTS, _HUB_BLOBS = "snapshots", "blobs"
"""A snapshot in the cache of Hugging Face's hub is a folder of links into the blobs next to it."""


def require_inert(directory: Path) -> None:
    """Raise ConfigurationError for a model whose settings would run or fetch code, or whose files lie elsewhere."""
    for name in sorted(MODEL_FILES):
        path = directory / name
        if path.is_file():
            require_inside(directory, path)
    for name in SETTINGS_FILES:
        path = directory / name
        if path.is_file():
            require_plain_settings(path)


def require_inside(directory: Path, path: Path) -> None:
    """Raise ConfigurationError for a link that leads out of its folder."""
    real, folder = path.resolve(), directory.resolve()
    roots = [folder, folder.parent.parent / _HUB_BLOBS] if folder.parent.name == _HUB_SNAPSHOTS else [folder]
    if not any(real.is_relative_to(root) for root in roots):
        raise ConfigurationError(
            f"{path} is a link to {real}, outside of its folder; put the file itself there, or take another copy"
        )


def require_plain_settings(path: Path) -> None:
    """Raise ConfigurationError for a file of settings that names code."""
    try:
        settings = parse_json(path.read_bytes())
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error
    for name, value in _walk(settings):
        if name in RUNS_CODE and value:
            raise ConfigurationError(
                f"{path} has `{name}`, which names code that a loader would run; remove it (the service has the "
                "model's family built in, or does not run it), and take no model from whom you do not trust"
            )
        is_kernel = name.endswith(_IMPLEMENTATION) or _IMPLEMENTATION in name.split("_")
        if is_kernel and isinstance(value, str) and any(mark in value for mark in "/:@\\"):
            raise ConfigurationError(f"{path} has `{name}` {value!r}, which a loader would fetch and run; remove it")
        if is_kernel and isinstance(value, dict) and any("/" in str(entry) for entry in value.values()):
            raise ConfigurationError(f"{path} has `{name}` {value!r}, which a loader would fetch and run; remove it")


def weight_files(directory: Path) -> list[str]:
    """Names of the files that hold the weights: what the index says, or the only one; whether they exist or not."""
    index = directory / INDEX
    if not index.exists():
        return [WEIGHTS]
    try:
        files = set(parse_json(index.read_bytes())["weight_map"].values())
        if wrong := [name for name in files if name != Path(name).name or Path(name).suffix != ".safetensors"]:
            raise ValueError(f"{wrong[0]!r} is not a file of weights in this folder")
        if WEIGHTS not in files and (directory / WEIGHTS).exists():
            raise ConfigurationError(
                f"{directory} holds two models: {WEIGHTS}, and {INDEX} with {len(files)} other files; remove what does "
                "not belong to this model"
            )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"the weights in {directory} cannot be read: {INDEX} is damaged: {error!r}") from error
    return sorted(files)


def _walk(settings: Any) -> Iterator[tuple[str, Any]]:
    waiting = [settings]
    while waiting:
        setting = waiting.pop()
        if isinstance(setting, dict):
            yield from setting.items()
            waiting += setting.values()
        elif isinstance(setting, list):
            waiting += setting
