"""`rollbus art-server run`: run OpenPipe ART in its own process, with the model endpoint."""

import os
from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.root import Settings, with_settings
from rollbus.start.served_model import served_base_model
from rollbus.terminal.log_lines import log_to_stderr


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
    model = base_model or served_base_model(settings)
    serve(settings.art_server_settings(model), settings.stack.art_port, settings.heart("art-server"))
