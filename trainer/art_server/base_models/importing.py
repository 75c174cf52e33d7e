"""A folder in Hugging Face layout, a GGUF file or an adapter → a base model in the cache, named by its files' hash.

Order: check what can be known before, fill a temporary folder, check it as the service will read it, rename. A process
killed on the way leaves a temporary folder, which the next import of the same model removes.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rollbus.runtime.files import hold_lock
from rollbus.runtime.machine import available_memory, disk_usage
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.art_server.base_models.gguf import convert_gguf, plan_gguf
from rollbus.trainer.art_server.base_models.merging import merge_adapter
from rollbus.trainer.art_server.base_models.source_files import GGUF, require_adapter, require_source
from rollbus.trainer.art_server.base_models.text_part import find_text_part
from rollbus.trainer.art_server.checkpoints.checkpoint import (
    TEMPORARY_PREFIX,
    publish_folder,
    read_weights,
)
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from rollbus.trainer.art_server.model.inert_files import INDEX, MODEL_FILES, weight_files
from rollbus.trainer.art_server.model.memory_limits import ran_out_of_memory
from rollbus.trainer.art_server.model.model import build_model

Report = Callable[[str], None]
HASH_DIGITS = 12
MOST_NAMES = 20
"""Of files left out, in a line of the report."""
MEMORY_FACTOR = 2.5
"""Bytes of memory per byte of float32 weights while a GGUF file is converted."""


def import_model(
    source: Path,
    cache: Path,
    *,
    name: str | None = None,
    onto: Path | None = None,
    template: str | None = None,
    report: Report = lambda _: None,
) -> Path:
    """Return the folder of the base model, which exists whole or not at all; one that exists is returned as it is.

    `onto` is the base model of a PEFT adapter; `template` replaces the chat template. ConfigurationError for a model
    that cannot be served, UnavailableError where disk or memory does not suffice.
    """
    if onto is not None:
        return _import_adapter(source, onto, cache, name=name, template=template, report=report)
    named, weights = require_source(source, name)
    report(f"hashing {', '.join(path.name for path in weights)}")
    files = _files_of(source, weights)
    target = cache / f"{named}-{_hash_files(files, template)}"
    if target.is_dir():
        return target
    with _write_folder(target) as partial:
        if partial is None:
            return target
        if weights[0].suffix == GGUF:
            needed = plan_gguf(weights[0])
            _require_disk(cache, needed)
            _require_memory(int(MEMORY_FACTOR * needed), source)
            report(f"converting {weights[0].name} into {needed / 1e6:.0f} MB of float32 weights")
            convert_gguf(weights[0], partial)
        else:
            if text_part := find_text_part(source, weights):
                ModelConfig.from_hf(text_part.config)
                report(f"taking the text part, without {text_part.left_out} weights that read images")
            else:
                read_config(source)  # says what is not supported before gigabytes are copied
            _require_disk(cache, sum(path.stat().st_size for path in files))
            if left_out := _names_left_out(source, files):
                report(f"leaving out {', '.join(left_out)}: no part of a model that is read here")
            report(f"copying {source}")
            for path in files:
                if not text_part or path.name in MODEL_FILES:
                    shutil.copyfile(path, partial / path.name)
            if text_part:
                text_part.write(partial)
        if template is not None:
            (partial / "chat_template.jinja").write_text(template, encoding="utf-8")
        report("checking config, tokenizer, chat template and weights")
        check_model(partial)
    return target


def _import_adapter(
    adapter: Path, base: Path, cache: Path, *, name: str | None, template: str | None, report: Report
) -> Path:
    """Merge an adapter into its base model, next to the cache, and import what comes out."""
    require_adapter(adapter, base)
    read_config(base)
    _require_disk(cache, 2 * sum((base / file).stat().st_size for file in weight_files(base)))
    with tempfile.TemporaryDirectory(dir=cache, prefix=TEMPORARY_PREFIX) as folder:
        report(f"merging {adapter.name} into {base.name}")
        merge_adapter(adapter, base, Path(folder))
        return import_model(Path(folder), cache, name=name or adapter.name.lower(), template=template, report=report)


def check_model(directory: Path) -> None:
    """Read a base model as the service will. ConfigurationError says what is missing or wrong."""
    config = read_config(directory)
    load_tokenizer(directory, vocabulary=config.vocabulary)
    with torch.device("meta"):
        model = build_model(config)
    weights = read_weights(directory, config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ConfigurationError(f"the weights in {directory} do not fit the model's config.json: {error}") from error


def _files_of(source: Path, weights: list[Path]) -> list[Path]:
    """Return the files that make the model: no weights in other formats, and with a GGUF file only a tokenizer."""
    if weights[0].suffix == GGUF:
        tokenizer_files = (weights[0].with_name(name) for name in ("tokenizer.json", "tokenizer_config.json"))
        return [*weights, *(path for path in tokenizer_files if path.exists())]
    return [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and (path in weights or path.name == INDEX or path.name in MODEL_FILES)
    ]


def _names_left_out(source: Path, files: list[Path]) -> list[str]:
    """Return the names of what does not go into the cache: code, and what no reader here knows."""
    return [path.name for path in sorted(source.iterdir()) if path not in files][:MOST_NAMES]


def _hash_files(files: list[Path], template: str | None) -> str:
    whole = hashlib.sha256((template or "").encode())
    for path in files:
        with path.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()[:HASH_DIGITS]


@contextmanager
def _write_folder(target: Path) -> Iterator[Path | None]:
    """Yield a temporary folder that becomes `target` if nothing is raised; None if another process has made it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(TEMPORARY_PREFIX + target.name)
    with hold_lock(partial.with_suffix(".lock")):
        if target.is_dir():
            yield None
            return
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            yield partial
            publish_folder(partial, target)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError):
                raise UnavailableError(
                    f"{target} could not be written ({error.strerror or error}), and nothing of it stays; free space "
                    "on its disk, or set XDG_CACHE_HOME to another one"
                ) from error
            if isinstance(error, Exception) and ran_out_of_memory(error):
                raise UnavailableError(
                    f"making {target.name} ran out of memory, and nothing of it stays; close other programs, or "
                    "import it on a larger machine"
                ) from error
            raise


def _require_disk(cache: Path, needed: int) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    usage = disk_usage(cache)
    if usage is not None and usage.free < needed:
        raise UnavailableError(
            f"the model needs {needed / 1e9:.2f} GB in {cache}, where {usage.free / 1e9:.2f} GB are free; free some, "
            "or set XDG_CACHE_HOME to another disk"
        )


def _require_memory(needed: int, source: Path) -> None:
    available = available_memory()
    if available is not None and available < needed:
        raise UnavailableError(
            f"converting {source} takes about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are "
            "available; close other programs, or import it on a larger machine"
        )
