"""`rollbus export`: write trajectories, SFT sets and preference pairs for other trainers."""

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.number_option import Number
from rollbus.cli.root import Settings, with_options, with_settings
from rollbus.terminal.output import echo, format_count
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.consumers.export.readers import Kind, ReaderName, SftLayout
    from rollbus.consumers.export.writing import FileFormat


class ExportOptions(TypedDict):
    """The values of `export_options`."""

    folder: Path
    where: str
    run_id: str | None
    data_set: str | None
    limit: int | None
    file_format: "FileFormat | None"
    validation: float


export_options = with_options(
    click.argument("folder", type=click.Path(path_type=Path, file_okay=False)),
    click.option(
        "--where",
        default="",
        show_default=False,
        metavar="SQL",
        help="Take only these, for example: \"task = 'play' AND reward > 0.5\".",
    ),
    click.option(
        "--run", "run_id", help="Take fate, step and reason from this run; needed if the settings have several."
    ),
    click.option("--data-set", metavar="NAME", help="Take only the members of this data set."),
    click.option("--limit", type=click.IntRange(min=1), help="Write at most this many trajectories."),
    click.option(
        "--format",
        "file_format",
        type=click.Choice(["parquet", "jsonl"]),
        help="Write files of this kind, not of the kind that the reader takes best: Parquet if it can.",
    ),
    click.option(
        "--validation",
        type=Number(0, 1, max_open=True),
        default=0.0,
        help="Hold back this share of the problems in a file of its own.",
    ),
)
reader_option = click.option(
    "--for",
    "reader",
    type=click.Choice(["hf", "trl", "axolotl", "verl", "nemo", "openai"]),
    default="hf",
    help="Write what this reader takes: Hugging Face datasets, TRL, Axolotl, verl, NeMo or OpenAI's fine-tuning.",
)


@click.group(cls=Verbs)
def export() -> None:
    """Write data sets from what was recorded, without what was excluded; see docs/export.md."""


@export.command()
@export_options
@click.option("--tokens", is_flag=True, help="Write token ids and log-probs as sampled, too.")
@with_settings
def trajectories(settings: Settings, tokens: bool, **options: Unpack[ExportOptions]) -> None:
    """Write whole trajectories into FOLDER: conversation, reward, fate, and tokens if asked for."""
    _export(settings, "trajectories", tokens=tokens, **options)


@export.command()
@export_options
@reader_option
@click.option(
    "--layout",
    "sft_layout",
    type=click.Choice(["messages", "prompt-completion"]),
    default="messages",
    help="Write whole conversations, or one row per answer.",
)
@with_settings
def sft(settings: Settings, reader: "ReaderName", sft_layout: "SftLayout", **options: Unpack[ExportOptions]) -> None:
    """Write a set for supervised fine-tuning into FOLDER; --where selects what was good enough."""
    _export(settings, "sft", reader=reader, sft_layout=sft_layout, **options)


@export.command()
@export_options
@reader_option
@click.option("--min-margin", type=Number(0), default=0.0, help="Leave out pairs whose rewards differ by less.")
@click.option(
    "--exhaustive", is_flag=True, help="Write every pair of answers to a prompt, not only the best with the worst."
)
@click.option(
    "--max-pairs", type=click.IntRange(min=1), help="Write at most this many pairs per prompt, the clearest first."
)
@with_settings
def dpo(
    settings: Settings,
    reader: "ReaderName",
    min_margin: float,
    exhaustive: bool,
    max_pairs: int | None,
    **options: Unpack[ExportOptions],
) -> None:
    """Write preference pairs into FOLDER: two answers to one prompt, the one with the higher reward first."""
    _export(
        settings,
        "dpo",
        reader=reader,
        min_margin=min_margin,
        exhaustive=exhaustive,
        max_pairs=max_pairs,
        **options,
    )


@export.command()
@export_options
@reader_option
@with_settings
def evaluation(settings: Settings, reader: "ReaderName", **options: Unpack[ExportOptions]) -> None:
    """Write each problem once into FOLDER: its prompt, its best answer so far with the reward, and its attempts."""
    _export(settings, "evaluation", reader=reader, **options)


def _export(
    settings: Settings,
    kind: "Kind",
    *,
    reader: "ReaderName" = "hf",
    tokens: bool = False,
    sft_layout: "SftLayout" = "messages",
    min_margin: float = 0.0,
    exhaustive: bool = False,
    max_pairs: int | None = None,
    **options: Unpack[ExportOptions],
) -> None:
    from rollbus.consumers.clickhouse.questions.saved_questions import require_run, stored_runs
    from rollbus.consumers.clickhouse.store.client import ClickHouse
    from rollbus.consumers.export.run import ExportRequest
    from rollbus.consumers.export.run import export as write_export

    folder, run = options["folder"], options["run_id"] or settings.run().run_id
    client = ClickHouse(settings.clickhouse)
    try:
        require_run(client, settings.namespace, run, [run_settings.run_id for run_settings in settings.runs])
        with show_progress("trajectories") as progress:
            request = ExportRequest(
                kind=kind,
                namespace=settings.namespace,
                run=run,
                where=options["where"],
                data_set=options["data_set"] or "",
                limit=options["limit"],
                reader=reader,
                file_format=options["file_format"],
                sft_layout=sft_layout,
                tokens=tokens,
                validation=options["validation"],
                min_margin=min_margin,
                exhaustive=exhaustive,
                max_pairs=max_pairs,
            )
            manifest = write_export(client, request, folder, progress=progress)
        stored = stored_runs(client, settings.namespace)
    finally:
        client.close()
    for file in manifest["files"]:
        echo(f"{format_count(file['rows'], 'row')} in {folder / file['path']}")
    for line in manifest["load"]:
        echo(f"load: {line}")
    for reason, count in manifest["left_out"].items():
        echo(f"left out: {count} {reason}")
    if run not in stored:
        known_runs = f"; --run takes one of {', '.join(stored)}" if stored else ""
        echo(f"run {run} has no rows in ClickHouse, so fate, step and reason are empty{known_runs}", err=True)
    left_out = format_count(manifest["exclusions"]["episodes"], "excluded episode")
    echo(f"left out: {left_out}; see {folder / 'manifest.json'}")
