"""`rollbus art-server run`: run OpenPipe ART in its own process, with the model endpoint."""

from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.output import show_progress
from rollbus.cli.root import Settings, log_to_stderr, with_settings


@click.group(cls=Verbs)
def art_server() -> None:
    """Run OpenPipe ART with its model endpoint."""


@art_server.command()
@click.option(
    "--base-model",
    type=click.Path(path_type=Path, file_okay=False),
    help="Serve the model in this folder (Hugging Face layout); default: `art_server: base_model:`, else the demo's.",
)
@with_settings
def run(settings: Settings, base_model: Path | None) -> None:
    """Serve the model on port 8000 (OpenAI-compatible) and training on port 7623, until SIGTERM or Ctrl-C.

    It keeps weights, checkpoints and the journal of training steps in `art_server: directory:`.
    """
    from rollbus.trainer.backends.art.server import serve

    log_to_stderr()
    serve(settings.art_server_settings(base_model or ensure_base_model(settings)), settings.stack.art_port)


def ensure_base_model(settings: Settings) -> Path:
    """Return the configured base model; without one, the demo's, which the first use trains (about 20 s)."""
    if settings.art_server.base_model:
        return settings.art_server.base_model
    from rollbus.demo.base_model import WarmStartSettings, ensure

    with show_progress("no base_model configured: training the demo's small model") as progress:
        return ensure(WarmStartSettings(), settings.stack.data_dir / "models", progress)
