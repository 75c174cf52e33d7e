"""`rollbus sql`: saved questions and your own."""

from typing import TYPE_CHECKING

import click

from rollbus.cli.output import Console, Table
from rollbus.cli.root import with_settings

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.saved import Answer
    from rollbus.settings import Settings

output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True
)


@click.group()
def sql() -> None:
    """Ask ClickHouse: saved questions or your own."""


@sql.command("list")
def list_() -> None:
    """List the saved questions and what they ask for."""
    from rollbus.consumers.clickhouse.saved import list_queries

    table = Table("name", "answers", "parameters")
    for query in list_queries():
        parameters = "\n".join(f"{each.name}={each.default}: {each.description}" for each in query.parameters)
        table.add_row(query.name, query.description, parameters)
    Console().print(table)


@sql.command()
@click.argument("name")
@click.option("-p", "--param", "values", multiple=True, metavar="NAME=VALUE", help="A parameter; repeatable.")
@output_option
@with_settings
def run(settings: "Settings", name: str, values: tuple[str, ...], output: str) -> None:
    """Answer a saved question, for example: rollbus sql run staleness --param run=main"""
    from rollbus.consumers.clickhouse.saved import load_query, run_query

    given = dict(_split(value) for value in values)
    if any(parameter.name == "namespace" for parameter in load_query(name).parameters):
        given.setdefault("namespace", settings.namespace)
    _print(run_query(settings.clickhouse, name, given), output, title=name)


@sql.command()
@click.argument("statement")
@output_option
@with_settings
def query(settings: "Settings", statement: str, output: str) -> None:
    """Answer one SQL statement of your own."""
    from rollbus.consumers.clickhouse.saved import ask

    _print(ask(settings.clickhouse, statement), output)


def _split(value: str) -> tuple[str, str]:
    name, found, text = value.partition("=")
    if not found:
        raise click.UsageError(f"{value!r} is no NAME=VALUE")
    return name, text


def _print(answer: "Answer", output: str, title: str | None = None) -> None:
    from rollbus.consumers.clickhouse.output import as_csv, as_json, as_table

    if output == "table":
        Console().print(as_table(answer.columns, answer.rows, title=title))
    else:
        click.echo((as_csv if output == "csv" else as_json)(answer.columns, answer.rows), nl=False)
