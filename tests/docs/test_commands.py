"""Every command, target and path that a page tells the reader to use is there, with the options it is given."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rollbus.cli.commands.streams.run import VerbsOrProgram
from rollbus.cli.root import rollbus

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
BLOCK = re.compile(r"```\w*\n(.*?)```|^((?: {4}[^\n]*\n)+)", flags=re.DOTALL | re.MULTILINE)
QUESTIONS = {path.stem for path in (ROOT / "consumers" / "clickhouse" / "queries").rglob("*.sql")}
SHELL_END = {"|", "&&", "||", ";", "&", ">", "<"}


def code_of(page: Path) -> Iterator[str]:
    """Each line of the page's blocks, continued ones joined, and each piece of code within a sentence."""
    text = page.read_text()
    for fenced, indented in BLOCK.findall(text):
        yield from (fenced or indented).replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def commands_of(page: Path) -> list[list[str]]:
    """The words of each `rollbus …` on a page, up to what the shell takes for itself."""
    commands = []
    for line in map(str.strip, code_of(page)):
        if line.startswith("rollbus "):
            words = shlex.split(line, comments=True)[1:]
            end = next((at for at, word in enumerate(words) if word in SHELL_END), len(words))
            commands.append(words[:end])
    return commands


def check(words: list[str]) -> None:
    """Walk down from the root; raise AssertionError where a verb or an option is not there."""
    command: click.Command = rollbus
    context = click.Context(command)
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "…":
            return
        if word.startswith("-") and word != "-":
            option = option_of(command, context, word.partition("=")[0])
            at += 0 if option.is_flag or "=" in word else option.nargs
        elif isinstance(command, click.Group):
            subcommand = command.get_command(context, word)
            if subcommand is None and isinstance(command, VerbsOrProgram):
                return  # a program of the reader's
            assert subcommand is not None, f"{command.name} has no {word!r}"
            command, context = subcommand, click.Context(subcommand)


def option_of(command: click.Command, context: click.Context, name: str) -> click.Option:
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    options += [click.Option(["-h", "--help"], is_flag=True)]
    matches = [option for option in options if name in (*option.opts, *option.secondary_opts)]
    assert matches, f"{command.name} has no option {name}"
    return matches[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_and_saved_question_on_a_page_is_there_with_its_options(page: Path) -> None:
    wrong = []
    for words in commands_of(page):
        try:
            check(words)
        except AssertionError as error:
            wrong.append(f"rollbus {' '.join(words)}: {error}")
    assert wrong == []
    question_names = [words[2] for words in commands_of(page) if words[:2] == ["sql", "run"] and len(words) > 2]
    assert [name for name in question_names if name.replace("-", "_") not in QUESTIONS and name != "…"] == []


MAKEFILES = [ROOT / folder / "Makefile" for folder in (".", "tests", "benchmarks")]
TARGETS = {name for path in MAKEFILES for name in re.findall(r"^([a-z0-9-]+):", path.read_text(), flags=re.MULTILINE)}


def leads_somewhere(page: Path, link: str) -> bool:
    """Say whether file and heading of a link are there."""
    name, _, heading = link.partition("#")
    target = page.parent / name if name else page
    if not heading:
        return target.exists()
    headings = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.MULTILINE)
    return heading in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_target_and_path_on_a_page_is_there(page: Path) -> None:
    code = list(code_of(page))
    targets = [line.split()[1] for line in code if line.strip().startswith("make ")]
    assert [name for name in targets if name not in TARGETS and not name.endswith("…")] == []
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if not leads_somewhere(page, link)] == []
    folders = "rollbus|schemas|producers|streams|consumers|trainer|tests|examples|benchmarks|docs|scripts"
    paths = [line for line in code if re.fullmatch(rf"(?:{folders})/[a-z_\d./-]*(?:/|\.[a-z]+)", line)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
