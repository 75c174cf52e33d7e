"""`rollbus sql run`, as it is installed, with an id of nothing, a mistyped one and an empty one: code 1, and why."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.consumers.clickhouse.questions.ids import IdParameter
from rollbus.consumers.clickhouse.questions.saved_questions import list_queries
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.schemas.ids import event_id, trajectory_id
from tests.console import ROLLBUS
from tests.consumers.story import story
from tests.installs import own_environment
from tests.services.clickhouse.test_queries import NAMESPACE, new_database, write

pytestmark = pytest.mark.services

QUESTIONS = [(query.name, parameter) for query in list_queries() for parameter in query.ids]
IDS_THERE = {
    "episode": "e5",
    "event": event_id("e5", "w1", 1),
    "trajectory": trajectory_id("e3"),
    "group": "g2",
    "step": "1",
    "replay": "replay-fixed.",
}
"""An id of each kind that the story has."""


@pytest.fixture(scope="module")
def folder(clickhouse: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, whose settings name a database with the story."""
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, NAMESPACE, list(story()))
    client.close()
    folder = tmp_path_factory.mktemp("project")
    connection = {"host": settings.host, "port": settings.port, "database": settings.database}
    (folder / "rollbus.yaml").write_text(json.dumps({"clickhouse": connection}))
    return folder


class Answer(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    stdout: str
    stderr: str


def make_words(name: str, values: tuple[str, ...]) -> list[str]:
    return ["sql", "run", name.replace("_", "-"), *(word for value in values for word in ("--param", value))]


def ask(name: str, *values: str) -> Answer:
    """Ask a question with these parameters, in this process: a start costs more than all the rest."""
    result = CliRunner().invoke(rollbus, make_words(name, values))
    return Answer(result.exit_code, result.stdout, result.stderr)


def ask_installed(folder: Path, name: str, *values: str) -> Answer:
    """Ask it by the console script, from the folder of the settings; leave out what a slow machine adds."""
    command = [ROLLBUS, *make_words(name, values)]
    completed = subprocess.run(command, cwd=folder, env=own_environment(), capture_output=True, text=True, timeout=120)
    lines = [line for line in completed.stderr.splitlines(keepends=True) if not line.endswith(" s so far\n")]
    return Answer(completed.returncode, completed.stdout, "".join(lines))


def test_an_episode_is_found_by_the_name_that_its_agent_gave_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    by_alias, by_id = ask("why_not_trained", "id=ticket-1"), ask("why_not_trained", "id=e1")
    assert (by_alias.code, by_alias.stdout) == (0, by_id.stdout), by_alias.stderr
    assert "assembly" in by_alias.stdout
    unknown = ask_installed(folder, "lineage_of_event", "id=ticket-1")
    assert (unknown.code, "no event 'ticket-1'" in unknown.stderr) == (1, True), unknown


@pytest.mark.parametrize(("name", "parameter"), QUESTIONS, ids=lambda value: getattr(value, "name", value))
def test_an_unknown_id_ends_with_code_1_and_a_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, parameter: IdParameter
) -> None:
    monkeypatch.chdir(folder)
    kind = parameter.kinds[0]
    is_number = kind == "step"
    values = {
        "unknown": "99" if is_number else "no-such",
        "mistyped": "l2" if is_number else f"{IDS_THERE[kind]}?",
        "empty": "",
    }
    there = ask(name, f"{parameter.name}={IDS_THERE[kind]}")
    assert there.code == 0, there.stderr
    results = {how: ask(name, f"{parameter.name}={value}") for how, value in values.items()}
    if name == "why_not_trained":
        assert ask_installed(folder, name, f"{parameter.name}={values['mistyped']}") == results["mistyped"]
    for how, value in values.items():
        answer = results[how]
        assert (answer.code, answer.stdout) == (1, ""), (how, answer)
        if is_number and how != "unknown":
            assert f"{parameter.name} must be Int64, got {value!r}" in answer.stderr
        elif how == "empty":
            assert f"Error: say which {kind}" in answer.stderr
        else:
            assert f"Error: no {' or '.join(parameter.kinds)} " in answer.stderr
            assert value in answer.stderr
    if not is_number:
        assert IDS_THERE[kind] in results["mistyped"].stderr.replace(values["mistyped"], "")
