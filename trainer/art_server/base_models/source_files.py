"""The files that somebody gives as a model: whether they can be imported, by their names and sizes alone.

Nothing heavy is imported here: a mistyped path is refused at once, without the seconds that torch takes.
"""

import re
import shlex
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.model.inert_files import (
    ADAPTER_CONFIG,
    INDEX,
    MODEL_FILES,
    require_inert,
    require_inside,
    weight_files,
)

GGUF = ".gguf"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
READ_WHOLE, MOST_TEXT_BYTES = frozenset({".json", ".jinja", ".txt", ".model"}), 256 * 2**20
"""Endings of the files next to the weights, and seven times what the largest tokenizer takes (Gemma 3's, 33 MB)."""


def require_source(source: Path, name: str | None = None) -> tuple[str, list[Path]]:
    """Return the name of the folder to make, and the files of weights; ConfigurationError if this is not a model."""
    named = _require_name(name or source.stem.lower())
    _require_ordinary_files(source)
    weights = _find_weights(source)
    for path in (*weights, *(source.iterdir() if source.is_dir() else ())):
        if path.is_file() and (path in weights or path.name in MODEL_FILES or path.name == INDEX):
            require_inside(path.parent if source.is_dir() else path.resolve().parent, path)
    if source.is_dir():
        require_inert(source)
    return named, weights


def require_adapter(adapter: Path, base: Path) -> None:
    """Raise ConfigurationError if one is not an adapter, or the other no model."""
    _require_ordinary_files(adapter)
    if not (adapter / ADAPTER_CONFIG).exists():
        raise ConfigurationError(f"{adapter} has no {ADAPTER_CONFIG}; give the folder of a PEFT adapter")
    _require_ordinary_files(base)
    _find_weights(base)


def _require_ordinary_files(source: Path) -> None:
    """Refuse a model of which a name leads to a device or a pipe, which may never end, or to a text without bound."""
    for path in sorted(source.iterdir()) if source.is_dir() else [source]:
        if not path.exists() or path.is_dir():
            continue
        if not path.is_file():
            raise ConfigurationError(f"{path} is a device, a pipe or a socket, or a link to one; put the file there")
        if path.suffix in READ_WHOLE and path.stat().st_size > MOST_TEXT_BYTES:
            raise ConfigurationError(
                f"{path} has {path.stat().st_size / 1e6:,.0f} MB, and at most {MOST_TEXT_BYTES / 1e6:.0f} MB of such a "
                "file are read; take another copy of the model, or move the file away if it is not part of it"
            )


def _find_weights(source: Path) -> list[Path]:
    """Return the files of weights at a path. ConfigurationError if there is no model that can be read."""
    if source.suffix == GGUF:
        if source.is_file():
            return [source]
        raise ConfigurationError(f"no file {source}; give the path of a GGUF file or of a folder with config.json")
    if not source.is_dir():
        raise ConfigurationError(
            f"{source} is neither a GGUF file nor a folder; give the path of a model on this machine (nothing is "
            "fetched from a hub)"
        )
    if (source / "config.json").exists():
        files = [source / file for file in weight_files(source)]
        missing = [path.name for path in files if not path.exists()]
        if missing and (source / INDEX).exists():
            raise ConfigurationError(
                f"{source} lacks {len(missing)} of the {len(files)} files of weights that {INDEX} names, among them "
                f"{missing[0]}; copy or download them again"
            )
        if missing:
            raise ConfigurationError(
                f"{source} has no {missing[0]}; this service reads weights in safetensors only (a pickled "
                "pytorch_model.bin can run code when it is read): save the model with save_pretrained"
            )
        return files
    if (source / ADAPTER_CONFIG).exists():
        raise ConfigurationError(
            f"{source} is a PEFT adapter, not a model; name the folder of its base model, too: `rollbus model import "
            f"{shlex.quote(str(source))} --onto BASE`"
        )
    ggufs = sorted(source.glob(f"*{GGUF}"))
    if len(ggufs) != 1:
        raise ConfigurationError(
            f"{source} has no config.json and {len(ggufs)} GGUF files; give a folder in Hugging Face layout, or one "
            "GGUF file"
        )
    return ggufs


def _require_name(name: str) -> str:
    """Return a name for a folder; ConfigurationError for one that would be a path."""
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot name a model's folder; give `--name` with letters, digits, `.`, `-` and `_`, the first a "
            "letter or a digit"
        )
    return name
