"""`rollbus import`: bring in traffic that was recorded elsewhere, from files."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verb
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.withhold_option import withhold_option
from rollbus.terminal.output import Console, OutputTable, echo
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.producers.turns.redaction import Field

STATE = Path(".rollbus/import")
FORMATS = ("langfuse", "langsmith", "otlp", "openai-chat", "openai-batch")
SHOWN_FIELDS = 20


@click.command("import", cls=Verb)
@click.argument("file_format", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument(
    "files", metavar="FILE…", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path)
)
@click.option("--task", help="Name the task of all episodes; else it is the name of their trace.")
@click.option("--producer", default="import", help="Name this import so in every event.")
@click.option("--dry-run", is_flag=True, help="Read and count all of it, and send nothing; needs no broker.")
@click.option("--skip-bad", is_flag=True, help="Count and leave out what cannot be read; else it ends the import.")
@click.option("--again", is_flag=True, help="Forget what an earlier, unfinished import of these files has read.")
@withhold_option("Send no texts of this field; repeatable.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=STATE,
    help="Keep what was read in this folder, until all is sent.",
)
@with_settings
def import_(
    settings: Settings,
    file_format: str,
    files: tuple[Path, ...],
    task: str | None,
    producer: str,
    dry_run: bool,
    skip_bad: bool,
    again: bool,
    withhold: "frozenset[Field]",
    state: Path,
) -> None:
    """Bring in the traces of FILEs (or folders) as episodes: langfuse, langsmith, otlp, openai-chat, openai-batch.

    The files are JSONL or JSON, also compressed with gzip. Times are the original ones, and ids come from the traces':
    a second import changes nothing. After a kill, or once a torn file is mended, the same command goes on where it was.
    """
    from rollbus.producers.imports.documents import find_files
    from rollbus.producers.imports.formats import formats
    from rollbus.producers.imports.import_files import Import
    from rollbus.producers.imports.sending import TraceConverter
    from rollbus.producers.imports.store import Store
    from rollbus.producers.turns.redaction import Privacy
    from rollbus.schemas.ids import content_hash

    paths = find_files(list(files))
    if not dry_run:
        require_topics(settings, "episode-events", "aliases", "producer-reports")
    about = [
        file_format,
        settings.namespace,
        settings.kafka.bootstrap_servers,
        task,
        *(str(file.resolve()) for file in paths),
    ]
    path = None if dry_run else state / f"{file_format}-{content_hash(about)[:16]}.sqlite"
    if again and path is not None:
        path.unlink(missing_ok=True)
    converter = TraceConverter(
        format=formats.FORMATS[file_format],
        namespace=settings.namespace,
        producer=producer,
        task=task,
        privacy=Privacy(None, withhold),
        max_record_bytes=settings.kafka.max_record_bytes,
    )
    store = Store(path)
    work = Import(files=paths, converter=converter, store=store, skip_bad=skip_bad)
    is_done = False
    try:
        with show_progress("reading") as progress:
            work.read(progress)
        with show_progress("deciding" if dry_run else "sending") as progress:
            counts = (
                work.decide(progress) if dry_run else asyncio.run(work.send(_sink_of(settings, producer), progress))
            )
        is_done = True
    except KeyboardInterrupt:
        echo("stopped; the same command goes on where it was", err=True)
        raise
    finally:
        store.close(remove=is_done)
    _show(counts, [*work.bad, *converter.refused], dry_run=dry_run)


def _sink_of(settings: Settings, producer: str):  # type: ignore[no-untyped-def]
    from rollbus.producers.sending.kafka_sink import KafkaSink

    return lambda: KafkaSink(settings.kafka, client_id=f"rollbus-{producer}", token=settings.sign_as("import"))


def _show(counts: Counter[str], reasons: list[str], *, dry_run: bool) -> None:
    console = Console()
    table = OutputTable("what", "number", title="would be sent" if dry_run else "sent")
    fields = {name.removeprefix("unmapped."): n for name, n in counts.items() if name.startswith("unmapped.")}
    for name in sorted(set(counts) - {f"unmapped.{field}" for field in fields}):
        table.add_row(name, f"{counts[name]:,}")
    console.print(table)
    if fields:
        table = OutputTable("field", "number", title="not read: fields that rollbus has no place for")
        for name, number in sorted(fields.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_FIELDS]:
            table.add_row(name, f"{number:,}")
        if len(fields) > SHOWN_FIELDS:
            table.add_row(f"and {len(fields) - SHOWN_FIELDS} more", "")
        console.print(table)
    for reason in reasons:
        console.print(f"left out: {reason}")
    if dry_run:
        console.print("nothing was sent: --dry-run")
