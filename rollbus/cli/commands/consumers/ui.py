"""`rollbus ui`: show what was trained, on which traffic, and what happened to the rest, in a browser."""

import logging
import os
from contextlib import suppress
from pathlib import Path

import click

from rollbus.cli.groups import Verb
from rollbus.cli.root import Settings, with_settings
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import echo

HOST = "127.0.0.1"
"""The page serves this machine only; forward the port over SSH to look from elsewhere."""


@click.command(cls=Verb)
@click.option("--port", default=8080, type=click.IntRange(0, 65535), help="Listen on this port; 0 takes a free one.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    help="Show each token's text with this tokenizer.json or model folder; by default art_server.base_model's.",
)
@with_settings
def ui(settings: Settings, port: int, tokenizer: Path | None) -> None:
    """Show what was trained and why, in a browser, until Ctrl-C.

    It reads ClickHouse and Kafka, and serves this machine only. Who logs in with the owner's token judges and acts;
    who does with a token that may report feedback judges.
    """
    from rollbus.health.lag import LagOfGroups
    from rollbus.health.status import StatusWatch
    from rollbus.runtime.http.listener import open_listener
    from rollbus.runtime.http.server import make_server
    from rollbus.ui.actions import Commands
    from rollbus.ui.app import make_app
    from rollbus.ui.door import page_door, page_token
    from rollbus.ui.page_questions import Asking
    from rollbus.ui.page_reports import PageReports
    from rollbus.ui.sessions import Sessions
    from rollbus.ui.token_text import load_texts

    config = click.get_current_context().find_root().params.get("config")
    path = tokenizer or settings.art_server.base_model
    texts = load_texts(path) if path is not None and (tokenizer or (path / "tokenizer.json").exists()) else None
    log_to_stderr()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the page itself reports that Kafka is away
    with open_listener(HOST, port) as listener:
        settings = settings.with_token(HOST, (), os.environ)
        token = settings.art_server.token
        owner_token = token.get_secret_value() if token else None
        sessions = Sessions(owner_token, settings.find_principal())
        app = make_app(
            Asking(settings.clickhouse, settings.namespace, {run.run_id: run.model for run in settings.runs}),
            namespace=settings.namespace,
            texts=texts,
            reports=PageReports(settings.kafka, settings.namespace, signing=settings.signing),
            sessions=sessions,
            commands=Commands(() if config is None else ("--config", str(config))),
            lags=LagOfGroups(settings.kafka, settings.namespace).ask,
            health=StatusWatch(settings),
        )
        secret = page_token(owner_token) if owner_token else None
        fragment = f"#token={secret}" if secret else ""  # a browser sends no fragment to a server
        echo(f"http://{HOST}:{listener.getsockname()[1]}/{fragment} (Ctrl-C stops)")
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end; uvicorn raises it again
            door = page_door(secret, sessions)
            make_server(app, door, timeout_graceful_shutdown=1).run(sockets=[listener])
