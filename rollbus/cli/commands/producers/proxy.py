"""`rollbus proxy`: record programs that cannot be changed, with a proxy."""

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.number_option import Number
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.signals import serve_until_stopped
from rollbus.cli.withhold_option import withhold_option
from rollbus.runtime.http.loopback import may_use_proxy
from rollbus.schemas.principals import NAME, read_head, split_token
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import echo

if TYPE_CHECKING:
    from rollbus.producers.recorder import Recorder
    from rollbus.producers.turns.redaction import Field


DOOR = "proxy"
"""The principal of what the owner's token brings."""
UPSTREAM_KEY = "ROLLBUS_UPSTREAM_API_KEY"
"""The model server's key, where programs bring the proxy's token as theirs."""


@click.group(cls=Verbs)
def proxy() -> None:
    """Record programs that cannot be changed, with an OpenAI-compatible proxy."""


def _check_upstream(_: click.Context, __: click.Parameter, upstream: str) -> str:
    """Return the upstream; raises BadParameter if no request could be sent to it."""
    try:
        parts = urlsplit(upstream)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number
        is_address = False
    if not is_address:
        raise click.BadParameter(f"{upstream!r} is not like http://127.0.0.1:8000/v1")
    return upstream


@proxy.command()
@click.option(
    "--upstream", required=True, callback=_check_upstream, help="Pass requests to this model server; ends in /v1."
)
@click.option("--host", default="127.0.0.1", help="Listen on this address.")
@click.option("--port", default=8001, type=click.IntRange(0, 65535), help="Listen on this port.")
@click.option("--task", help="Record requests that name no episode as episodes of this task, one each.")
@click.option("--producer", default="proxy", help="Name this proxy so in every event.")
@click.option(
    "--logprobs",
    type=click.Choice(["force", "request", "passive"]),
    default="force",
    help="Ask the server for log-probs and ids: always, unless the program says no, or never.",
)
@withhold_option("Never let the texts of this field leave the proxy; repeatable.")
@click.option(
    "--sample-rate",
    default=1.0,
    type=Number(0, 1),
    help="Record this share of groups, or of episodes without a group.",
)
@click.option(
    "--spool-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep here what no broker takes, also after the proxy ends.",
)
@click.option(
    "--timeout", default=600.0, type=Number(0, min_open=True), help="Wait at most this many seconds for the server."
)
@with_settings
def run(
    settings: Settings,
    upstream: str,
    host: str,
    port: int,
    task: str | None,
    producer: str,
    logprobs: str,
    withhold: "frozenset[Field]",
    sample_rate: float,
    spool_folder: Path | None,
    timeout: float,
) -> None:
    """Pass requests on to the model server and record the calls of models, until SIGTERM or Ctrl-C.

    A request belongs to the episode that its `rollbus-episode` header names, or to the one in its path: POST
    /rollbus/episodes opens one and answers with the base URL to use for it.
    """
    import httpx

    from rollbus.producers import init
    from rollbus.producers.proxy.app import Proxy
    from rollbus.runtime.health.heart import beating
    from rollbus.runtime.http.listener import open_listener
    from rollbus.runtime.http.server import make_server

    log_to_stderr()
    with open_listener(host, port) as listener:
        own_port = listener.getsockname()[1]
        settings = settings.with_token(host, [own_port], os.environ)
        init_recorder = partial(
            init,
            security=settings.kafka,
            namespace=settings.namespace,
            producer=producer,
            withhold=withhold,
            sample_rate=sample_rate,
            route=[run.model for run in settings.runs if run.delivery is not None],
        )

        def record_as(token: str | None) -> "Recorder":
            """Return a recorder that signs with a token: what it spools waits for its principal, and for no other."""
            head, _ = split_token(token or "") or ("", b"")
            principal = read_head(head)
            name = DOOR if principal is None else principal.name
            return init_recorder(token=token, spool_folder=None if spool_folder is None else spool_folder / name)

        recorder = record_as(settings.sign_as(DOOR))
        spooled = [record_as(settings.sign_as(name)) for name in find_spooled(spool_folder)]
        for spooled_recorder in spooled:
            spooled_recorder.outbox.submit_report()  # a recorder looks into its spool once it sends something
        address = f"http://{f'[{host}]' if ':' in host else host}:{own_port}"
        limits = httpx.Limits(max_connections=None)
        http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, connect=10.0), limits=limits, trust_env=may_use_proxy(upstream)
        )
        token, of_upstream = settings.art_server.token, settings.token_of(upstream)
        recording_proxy = Proxy(
            recorder,
            upstream.rstrip("/"),
            http,
            task=task,
            mode=logprobs,
            token=token.get_secret_value() if token else None,
            upstream_key=os.environ.get(UPSTREAM_KEY) or (of_upstream.get_secret_value() if of_upstream else None),
            find_principal=settings.find_principal(),
            record_as=record_as,
            address=address,
        )
        server = make_server(recording_proxy.app(), recording_proxy.door(host))

        async def serve() -> None:
            async with beating(settings.heart("proxy"), recording_proxy.report, own_metrics=recorder.metrics):
                echo(f"what asks OPENAI_BASE_URL={address}/v1 is recorded (Ctrl-C stops)", err=True)
                await serve_until_stopped(server, listener)
                await asyncio.gather(*(asyncio.to_thread(spooled_recorder.close) for spooled_recorder in spooled))

        asyncio.run(serve())


def find_spooled(spool_folder: Path | None) -> list[str]:
    """Return the principals whose records an earlier proxy has left in the spool."""
    if spool_folder is None or not spool_folder.is_dir():
        return []
    return sorted(place.name for place in spool_folder.iterdir() if place.name != DOOR and NAME.fullmatch(place.name))
