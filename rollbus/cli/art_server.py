"""`rollbus art-server run`: OpenPipe ART in a process of its own, with the model endpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import Progress

from rollbus.cli.groups import Verbs
from rollbus.cli.output import Console
from rollbus.cli.root import log_to_stderr, with_settings

if TYPE_CHECKING:
    from rollbus.settings import Settings


@click.group(cls=Verbs)
def art_server() -> None:
    """OpenPipe ART with its model endpoint."""


@art_server.command()
@click.option(
    "--base-model",
    type=click.Path(path_type=Path, file_okay=False),
    help="Model directory in Hugging Face layout; default: `art_server: base_model:`, else the demo's small model.",
)
@with_settings
def run(settings: "Settings", base_model: Path | None) -> None:
    """Serve the model on port 8000 (OpenAI-compatible) and training on port 7623, until SIGTERM or Ctrl-C.

    Weights, checkpoints and the journal of training steps stay in `art_server: directory:`.
    """
    from rollbus.trainer.backends.art_server import serve

    log_to_stderr()
    serve(settings.art_server_settings(base_model or base_model_of(settings, Console(stderr=True))))


def base_model_of(settings: "Settings", console: Console) -> Path:
    """Return the configured base model; without one, the demo's, which is made on first use (about 20 s)."""
    if settings.art_server.base_model:
        return settings.art_server.base_model
    from rollbus.demo.base_model import WarmStartSettings, ensure

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("no base_model configured: making the demo's small model", total=None)
        return ensure(
            WarmStartSettings(),
            settings.stack.data_dir / "models",
            lambda done, total: progress.update(task, completed=done, total=total),
        )
