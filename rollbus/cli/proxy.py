"""`rollbus proxy`: record programs that cannot be changed."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.root import log_to_stderr, with_settings

if TYPE_CHECKING:
    from rollbus.producers.redaction import Field
    from rollbus.settings import Settings


@click.group(cls=Verbs)
def proxy() -> None:
    """An OpenAI-compatible proxy that records what passes."""


def _an_address(_: click.Context, __: click.Parameter, upstream: str) -> str:
    """Return the upstream; raises BadParameter where no request could be sent to it."""
    try:
        parts = urlsplit(upstream)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        whole = False
    if not whole:
        raise click.BadParameter(f"{upstream!r} is not like http://127.0.0.1:8000/v1")
    return upstream


@proxy.command()
@click.option("--upstream", required=True, callback=_an_address, help="The model server, up to and with /v1.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8001, show_default=True, type=click.IntRange(0, 65535))
@click.option("--task", help="Record requests that name no episode as episodes of this task, one each.")
@click.option("--producer", default="proxy", show_default=True, help="Name of this proxy in every event.")
@click.option(
    "--logprobs",
    type=click.Choice(["force", "request", "passive"]),
    default="force",
    show_default=True,
    help="Ask the server for log-probs and ids: always, unless the program says no, or never.",
)
@click.option(
    "--withhold",
    type=click.Choice(["messages", "tools", "tool_calls", "labels", "comments", "errors", "tokens"]),
    multiple=True,
    help="A field whose texts never leave the proxy; may be given several times.",
)
@click.option("--sample-rate", default=1.0, show_default=True, help="Share of groups, or of episodes, recorded.")
@click.option(
    "--spool-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep on disk here what no broker takes, past the end of the proxy too.",
)
@click.option("--timeout", default=600.0, show_default=True, help="Longest wait for the server, in seconds.")
@with_settings
def run(
    settings: "Settings",
    upstream: str,
    host: str,
    port: int,
    task: str | None,
    producer: str,
    logprobs: str,
    withhold: "tuple[Field, ...]",
    sample_rate: float,
    spool_folder: Path | None,
    timeout: float,
) -> None:
    """Pass requests on to the model server and record the calls of models, until SIGTERM or Ctrl-C.

    A request belongs to the episode that its `rollbus-episode` header names, or to the one in its path: POST
    /rollbus/episodes opens one and answers with the base URL to use for it.
    """
    import httpx
    import uvicorn

    from rollbus.producers import init
    from rollbus.producers.proxy.app import Proxy

    log_to_stderr()
    recorder = init(
        security=settings.kafka,
        namespace=settings.namespace,
        producer=producer,
        withhold=withhold,
        sample_rate=sample_rate,
        spool_folder=spool_folder,
    )
    http = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=10.0), limits=httpx.Limits(max_connections=None))
    app = Proxy(recorder, upstream.rstrip("/"), http, task=task, mode=logprobs).app()
    uvicorn.run(app, host=host, port=port, log_config=None, access_log=False)
