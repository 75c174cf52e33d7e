"""What the owner does from the page: which command it is, and what is refused before one runs."""

from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.ui.actions import ACTIONS, Commands, read_form, words_of

ACTION_VALUES: dict[str, Any] = {"run": "main", "reason": "worse"}


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({"action": "pause"}, ["run", "pause", "main", "--comment=ann: worse"]),
        ({"action": "promote", "version": 8}, ["policy", "promote", "--run=main", "8", "--reason=ann: worse"]),
        ({"action": "rollback", "version": 0}, ["policy", "rollback", "--run=main", "0", "--reason=ann: worse"]),
        ({"action": "reject", "version": 8}, ["policy", "reject", "--run=main", "8", "--reason=ann: worse"]),
        ({"action": "exclude", "episode": "-x"}, ["forget", "--no-clickhouse", "--episode=-x", "--reason=ann: worse"]),
        ({"action": "forget", "label": "user=ann b"}, ["forget", "--label=user=ann b", "--reason=ann: worse"]),
    ],
)
def test_an_action_runs_its_command_in_the_name_of_its_person(values: dict[str, Any], command: list[str]) -> None:
    assert words_of(read_form(ACTION_VALUES | values), "ann") == command


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"action": "delete"}, "no action 'delete'; there are pause"),
        ({"action": "promote"}, "promote takes a version"),
        ({"action": "forget", "label": "user"}, "label: "),
        ({"action": "pause", "reason": " "}, "give a reason"),
        ({"action": "pause", "run": "--config=/etc/x"}, "names no run"),
        ({"action": "pause", "command": "sh"}, "command: Extra inputs"),
    ],
)
def test_an_unknown_action_is_refused_before_a_command_runs(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read_form(ACTION_VALUES | values)


async def test_a_preview_names_the_command_and_changes_nothing() -> None:
    preview = await Commands().act("ann", {"action": "pause", "run": "main", "is_preview": True})
    assert preview == {"command": "rollbus run pause main '--comment=ann: …'", "output": ""}


async def test_a_failed_command_shows_its_own_message(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="'gone'"):
        await Commands(("--config", "/dev/null")).act("ann", {"action": "pause", "run": "gone", "reason": "x"})


def test_every_action_says_what_it_will_do() -> None:
    assert all(action.title and action.does.endswith(".") for action in ACTIONS.values())
