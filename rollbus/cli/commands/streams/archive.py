"""`rollbus archive`: keep the log beyond Kafka's retention, in a folder or in object storage, and bring it back."""

import asyncio
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.root import Settings, with_settings
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.terminal.output import Console, OutputTable, echo, format_count, format_time
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.archive.archive import Archive

at_url = click.option(
    "--at", "url", metavar="URL", help="Use the archive in this folder or at this URL instead of `archive: url:`."
)


@click.group(cls=Verbs)
def archive() -> None:
    """Keep the log beyond Kafka's retention, and bring it back; see docs/archive.md."""


@archive.command()
@at_url
@with_settings
def run(settings: Settings, url: str | None) -> None:
    """Archive what has come since the last time; a run that was cut off goes on where its last manifest ends.

    It ends with status 1 if retention deleted something before, or if a manifest is damaged; all else is archived.
    """
    from rollbus.archive.archive import open_archive
    from rollbus.archive.kafka.run import ArchiveRun, run_job

    place = _place(settings, url)
    with show_progress("archiving") as progress:
        log_archive = open_archive(place, may_be_new=True, despite_damage=True)
        work = ArchiveRun(settings.stream_settings(), log_archive, wall_clock_ms, progress)
        asyncio.run(run_job(work, settings.heart("archive")))
    manifests = format_count(log_archive.contents.number, "manifest")
    echo(f"{format_count(work.records, 'record')} archived; {place} has {manifests}")
    if work.left_out:
        echo(f"left out: {format_count(work.left_out, 'record')} of forgotten episodes")
    if work.missing:
        echo("run it more often than `retention_hours`: retention deletes what is not archived by then")
    if work.trouble is not None:
        raise DataLossError(work.trouble)


@archive.command()
@at_url
@with_settings
def ls(settings: Settings, url: str | None) -> None:
    """List what the archive holds: topics, offsets, records, times and sizes."""
    from rollbus.archive.archive import total

    log_archive = _open(settings, url)
    table = OutputTable("topic", "partition", "offsets", "records", "from (UTC)", "to", "files", "bytes")
    for name, partition in log_archive.contents.partitions.items():
        files = log_archive.contents.files_of(name)
        records, size = total(files)
        first, last = (
            min((file.first_ms for file in files), default=None),
            max((file.last_ms for file in files), default=None),
        )
        table.add_row(
            partition.topic,
            str(partition.partition),
            f"{partition.begin} … {partition.end - 1}" if partition.begin < partition.end else "none",
            f"{records:,}",
            *("–" if ms is None else format_time(ms) for ms in (first, last)),
            str(len(files)),
            f"{size:,}",
        )
    Console().print(table)
    _print_missing(log_archive)
    newest = log_archive.contents.manifests[-1]
    last_manifest = f"the last of {format_time(newest.written_at_ms)} UTC"
    echo(f"{log_archive.url}: {newest.namespace}* in {format_count(newest.number, 'manifest')}, {last_manifest}")


@archive.command()
@at_url
@with_settings
def verify(settings: Settings, url: str | None) -> None:
    """Read the whole archive; name each manifest and file that is not as it was written, and offsets that are missing.

    It ends with status 1 if there is any.
    """
    from rollbus.archive.archive import total

    log_archive = _open(settings, url, despite_damage=True)
    with show_progress("verifying") as progress:
        troubles = log_archive.verify(progress)
    if troubles:
        raise DataLossError("\n".join(troubles))
    if unnamed := log_archive.find_unnamed():
        cause = f"of a run that was cut off or of a forgotten episode, such as {unnamed[0]}"
        files = format_count(len(unnamed), "file")
        echo(f"without effect, {cause}: {files}; `rollbus forget --again` deletes what is left")
    records, size = total(log_archive.contents.files.values())
    counts = [
        format_count(log_archive.contents.number, "manifest"),
        format_count(len(log_archive.contents.files), "file"),
    ]
    counts += [format_count(records, "record"), format_count(size, "byte")]
    echo(f"{', '.join(counts)}: each is as it was written")
    if log_archive.contents.missing:
        lines = [
            f"missing: {missing_span}; retention deleted it before it was archived"
            for missing_span in log_archive.contents.missing
        ]
        raise DataLossError("\n".join(lines))


@archive.command()
@click.argument("name")
@at_url
@click.option("--allow-missing", is_flag=True, help="Restore although retention has deleted a part in the middle.")
@with_settings
def restore(settings: Settings, name: str, url: str | None, allow_missing: bool) -> None:
    """Write the archive into Kafka, at the same offsets, in the namespace `restored-NAME.` before the archived one.

    A replay reads it as it would have read the log. Topics that are there already are never written into.
    """
    from rollbus.archive.kafka.restore import Restore

    log_archive = _open(settings, url)
    with show_progress("restoring") as progress:
        work = Restore(settings.stream_settings(), log_archive, name, allow_missing, progress)
        asyncio.run(work.run())
    table = OutputTable("partition", "digest")
    for partition, digest in sorted(work.digests.items()):
        table.add_row(partition, digest)
    Console().print(table)
    echo(f"{work.namespace}* has {format_count(work.records, 'record')}; read back, they have the archive's digests")
    echo(f"replay them: ROLLBUS_NAMESPACE={work.namespace} rollbus replay --from earliest --dry-run")


@archive.command()
@click.argument("name")
@with_settings
def discard(settings: Settings, name: str) -> None:
    """Delete the topics of a restored namespace, whole or not; the archive stays."""
    from rollbus.archive.kafka.restore import discard as delete

    echo(f"deleted {format_count(len(asyncio.run(delete(settings.stream_settings(), name))), 'topic')}")


def _place(settings: Settings, url: str | None) -> str:
    if location := url or settings.archive.url:
        return str(location)
    raise ConfigurationError("say where the archive is: `archive: url:` in the settings, or --at FOLDER or URL")


def _open(settings: Settings, url: str | None, *, despite_damage: bool = False) -> "Archive":
    from rollbus.archive.archive import open_archive

    return open_archive(_place(settings, url), despite_damage=despite_damage)


def _print_missing(log_archive: "Archive") -> None:
    for missing_span in log_archive.contents.missing:
        echo(f"missing: {missing_span}; retention deleted it before it was archived")
