"""`rollbus sql`: ask ClickHouse saved questions or your own."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.root import Settings, with_options, with_settings
from rollbus.schemas.errors import ConfigurationError, RejectedError
from rollbus.terminal.output import Console, OutputTable, echo, format_count

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.questions.saved_questions import QueryResult, SavedQuery


class OutputForm(TypedDict):
    """The values of `output_options`."""

    output: str
    to: Path | None
    value: str | None


output_options = with_options(
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "csv", "json", "parquet", "chart"]),
        default="table",
        help="Show the answer in this form; json has one object per line, chart draws bars.",
    ),
    click.option("--to", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file; parquet needs it."),
    click.option("--value", help="Draw this column in a chart; by default the question's own, or the first mean."),
)


@click.group(cls=Verbs)
def sql() -> None:
    """Ask ClickHouse saved questions or your own."""


@sql.command("list")
def list_() -> None:
    """List the saved questions and their parameters."""
    from rollbus.consumers.clickhouse.questions.saved_questions import list_queries

    table = OutputTable("name", "answers", "parameters")
    for query in list_queries():
        parameters = "\n".join(
            f"{parameter.name}={parameter.default}: {parameter.description}" for parameter in query.parameters
        )
        table.add_row(query.name, query.description, parameters)
    Console().print(table)


@sql.command()
@click.argument("name")
@click.option("-p", "--param", "values", multiple=True, metavar="NAME=VALUE", help="Set a parameter; repeatable.")
@click.option("--run", "run_id", help="Ask about this run, or its model; needed if the settings have several.")
@output_options
@with_settings
def run(settings: Settings, name: str, values: tuple[str, ...], run_id: str | None, **form: Unpack[OutputForm]) -> None:
    """Answer a saved question, for example: rollbus sql run lineage-of-step --param step=12

    The namespace, and the run or model if there is only one, come from the settings unless they are given.
    """
    from rollbus.consumers.clickhouse.questions.saved_questions import load_query, run_query

    _require_possible(form)
    query = load_query(name)
    query_values = add_defaults(settings, query, dict(_split_parameter(value) for value in values), run_id)
    form["value"] = form["value"] or query.chart
    configured = [run.run_id for run in settings.runs]
    _print(run_query(settings.clickhouse, name, query_values, configured=configured), title=name, **form)


@sql.command()
@click.argument("statement")
@click.option("--write", "writes", is_flag=True, help="Let the statement change tables.")
@output_options
@with_settings
def query(settings: Settings, statement: str, writes: bool, **form: Unpack[OutputForm]) -> None:
    """Answer one SQL statement of your own; without --write the server refuses one that changes anything."""
    from rollbus.consumers.clickhouse.questions.saved_questions import ask

    _require_possible(form)
    try:
        answer = ask(settings.clickhouse, statement, writes=writes)
    except RejectedError as error:
        if writes or "readonly" not in str(error):
            raise
        raise RejectedError(f"{error}; `rollbus sql query --write` lets a statement change tables") from error
    _print(answer, **form)


@sql.command()
@click.option("--user", default="readonly", help="Name the user.")
@with_settings
def grants(settings: Settings, user: str) -> None:
    """Print the statements by which an administrator makes the read-only user on a ClickHouse server."""
    from rollbus.local.clickhouse.reader_role import NO_GRANT, make_role_statements

    echo(f"-- {NO_GRANT}")
    for statement in make_role_statements(settings.clickhouse.database, user):
        echo(f"{statement};")


def add_defaults(
    settings: Settings, query: "SavedQuery", given: Mapping[str, str], run_id: str | None = None
) -> dict[str, str]:
    """Return the values given, and those that the settings hold; raises ConfigurationError if they have several.

    A question about a model, and not about a run, is about the run's model: the versions of two models have the same
    numbers. A question whose own run is empty is about all runs.
    """
    defaults = {parameter.name: parameter.default for parameter in query.parameters}
    values = {"namespace": settings.namespace} if "namespace" in defaults else {}
    models = sorted({run.model for run in settings.runs})
    if run_id is not None and ("run" in defaults or "model" not in defaults):
        values["run"] = run_id
    elif defaults.get("run") and "run" not in given:
        values["run"] = settings.run().run_id
    elif run_id is not None:
        values["model"] = settings.run(run_id).model
    elif "model" in defaults and "model" not in given and len(models) > 1:
        raise ConfigurationError(
            f"there are several models ({', '.join(models)}); say which with --run or --param model=NAME, or ask about "
            "all of them with --param model="
        )
    return values | dict(given)


def _split_parameter(value: str) -> tuple[str, str]:
    name, equals, text = value.partition("=")
    if not equals:
        raise click.UsageError(f"{value!r} is not like NAME=VALUE")
    return name, text


def _require_possible(form: OutputForm) -> None:
    """Raise UsageError, before anything is asked, for a form that cannot be shown or an option without effect."""
    if form["output"] == "parquet" and form["to"] is None:
        raise click.UsageError("--output parquet needs --to FILE")
    if form["output"] != "chart" and form["value"] is not None:
        raise click.UsageError("--value says what a chart draws; add --output chart, or leave --value out")


def _print(answer: "QueryResult", *, output: str, to: Path | None, value: str | None, title: str | None = None) -> None:
    from rollbus.consumers.clickhouse.questions.output import as_csv, as_json, as_table

    if not answer.rows:
        echo("no rows", err=True)
    if output == "parquet":
        from rollbus.consumers.clickhouse.questions.parquet import write_parquet

        assert to is not None
        write_parquet(to, answer.columns, answer.rows)
        echo(f"{format_count(len(answer.rows), 'row')} in {to}", err=True)
    elif output in {"csv", "json"}:
        text = (as_csv if output == "csv" else as_json)(answer.columns, answer.rows)
        if to is None:
            (echo if sys.stdout.isatty() else click.echo)(text, nl=False)  # a program reads it as it is
        else:
            to.write_text(text)
    else:
        if output == "chart":
            from rollbus.consumers.clickhouse.questions.chart import as_chart

            view = as_chart(answer.columns, answer.rows, value=value)
        else:
            view = as_table(answer.columns, answer.rows, title=title, width=Console().width if to is None else None)
        if to is None:
            Console().print(view)
        else:
            with to.open("w") as file:
                Console(file=file).print(view)
