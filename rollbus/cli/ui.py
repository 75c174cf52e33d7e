"""`rollbus ui`: what was trained, on whose traffic, and what became of the rest, in a browser."""

import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.root import with_settings

if TYPE_CHECKING:
    from rollbus.settings import Settings

HOST = "127.0.0.1"
"""The page has no login, so nobody but this machine is served; forward the port over SSH to look from elsewhere."""


@click.command()
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    help="tokenizer.json, or the folder of the model: shows the text of each token; else art_server.base_model's.",
)
@with_settings
def ui(settings: "Settings", port: int, tokenizer: Path | None) -> None:
    """Show what was trained and why, in a browser, until Ctrl-C: reads ClickHouse, writes nothing, serves loopback."""
    import uvicorn

    from rollbus.ui.app import make_app
    from rollbus.ui.asking import Asking
    from rollbus.ui.lag_kafka import LagOfGroups
    from rollbus.ui.token_text import load_texts

    place = tokenizer or settings.art_server.base_model
    texts = load_texts(place) if place is not None and (tokenizer or (place / "tokenizer.json").exists()) else None
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the page itself says that Kafka is away
    app = make_app(
        Asking(settings.clickhouse, settings.namespace),
        namespace=settings.namespace,
        texts=texts,
        lags=LagOfGroups(settings.kafka, settings.namespace).ask,
    )
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise click.ClickException(f"port {port} of {HOST} is taken ({error.strerror}); use --port") from error
        click.echo(f"http://{HOST}:{listener.getsockname()[1]}/ (Ctrl-C stops)")
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends; uvicorn passes it on
            uvicorn.Server(config).run(sockets=[listener])
