"""`rollbus ingest`: take in OTLP of agents that are traced already."""

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.number_option import Number
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.signals import serve_until_stopped
from rollbus.cli.withhold_option import withhold_option
from rollbus.runtime.tasks import start_task
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import echo

if TYPE_CHECKING:
    from rollbus.producers.turns.redaction import Field

GIB = 1 << 30


@click.group(cls=Verbs)
def ingest() -> None:
    """Take in OTLP of agents that are traced already; see docs/import.md."""


@ingest.command()
@click.option("--host", default="127.0.0.1", help="Listen on this address.")
@click.option("--port", default=4318, type=click.IntRange(0, 65535), help="Serve OTLP over HTTP on this port.")
@click.option("--grpc-port", default=4317, type=click.IntRange(0, 65535), help="Serve OTLP over gRPC on this port.")
@click.option("--task", help="Name the task of all episodes; else it is the name of the root span.")
@click.option("--producer", default="ingest", help="Name this server so in every event.")
@click.option(
    "--settle",
    default=10.0,
    type=Number(0),
    help="Send a trace so many seconds after its root and last span.",
)
@click.option(
    "--quiet",
    default=900.0,
    type=Number(0),
    help="Send a trace without a root after so many seconds of silence.",
)
@withhold_option("Send no texts of this field; repeatable.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".rollbus/ingest"),
    help="Keep spans in this folder until their trace is sent.",
)
@click.option("--max-gib", default=10.0, type=Number(0.01), help="Keep at most so much there, then refuse spans.")
@with_settings
def serve(
    settings: Settings,
    host: str,
    port: int,
    grpc_port: int,
    task: str | None,
    producer: str,
    settle: float,
    quiet: float,
    withhold: "frozenset[Field]",
    state: Path,
    max_gib: float,
) -> None:
    """Take in OTLP over HTTP and gRPC and record each trace as an episode, until SIGTERM or Ctrl-C.

    A span is on disk before its request is answered, so after a kill the next start sends it. Programs need the stack's
    token, as OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer …".
    """
    from rollbus.producers.imports.collector import TraceCollector
    from rollbus.producers.imports.formats.formats import FORMATS
    from rollbus.producers.imports.grpc_server import serving_grpc
    from rollbus.producers.imports.http import make_app, make_door
    from rollbus.producers.imports.sending import TraceConverter
    from rollbus.producers.imports.store import Store
    from rollbus.producers.sending.kafka_sink import KafkaSink
    from rollbus.producers.turns.redaction import Privacy
    from rollbus.runtime.health.heart import beating
    from rollbus.runtime.http.listener import open_listener
    from rollbus.runtime.http.server import make_server

    require_topics(settings, "episode-events", "aliases", "producer-reports")
    log_to_stderr()
    converter = TraceConverter(
        format=FORMATS["otlp"],
        namespace=settings.namespace,
        producer=producer,
        task=task,
        privacy=Privacy(None, withhold),
        max_record_bytes=settings.kafka.max_record_bytes,
    )
    store = Store(state / "otlp.sqlite", max_bytes=int(max_gib * GIB))
    collector = TraceCollector(
        store=store, converter=converter, settle_ms=int(settle * 1000), quiet_ms=int(quiet * 1000)
    )
    shown_host = f"[{host}]" if ":" in host else host
    try:
        with open_listener(host, port) as listener:
            http_port = listener.getsockname()[1]
            settings = settings.with_token(host, [http_port, *([grpc_port] if grpc_port else [])], os.environ)
            secret = settings.art_server.token
            token = None if settings.insecure or secret is None else secret.get_secret_value()
            find_principal = settings.find_principal()
            make_sink = partial(
                KafkaSink,
                settings.kafka,
                client_id="rollbus-ingest",
                token=settings.sign_as("ingest"),
                signing=settings.signing,
            )

            async def serve_both() -> None:
                async with serving_grpc(collector, host, grpc_port, token, find_principal) as bound_grpc_port:
                    sending = start_task(collector.run(make_sink), "sending traces")
                    async with beating(settings.heart("ingest"), collector.report):
                        echo(
                            f"OTLP: http://{shown_host}:{http_port} and, by gRPC, {shown_host}:{bound_grpc_port}",
                            err=True,
                        )
                        server = make_server(
                            make_app(collector, find_principal), make_door(host, token, find_principal)
                        )
                        await serve_until_stopped(server, listener)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

            asyncio.run(serve_both())
    finally:
        store.close()
