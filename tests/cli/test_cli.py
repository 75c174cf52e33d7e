"""The command line reads well, loads only what it needs, and ends with a message instead of a traceback."""

import itertools
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rollbus.cli.commands.trainer.policy import format_share
from rollbus.cli.groups import Verb, Verbs
from rollbus.cli.number_option import Number
from rollbus.cli.root import COMMANDS, SettingsFile, rollbus
from rollbus.hosted_stages import require_judge_model, rewards_of, select_stages
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.settings import Settings
from rollbus.terminal.output import format_count, show_record
from tests.builders import make_step
from tests.console import ROLLBUS


def invoke(*arguments: str, expect: int = 0, **environment: str) -> str:
    result = CliRunner().invoke(rollbus, arguments, env=environment)
    assert result.exit_code == expect, result.output
    return result.output


def verbs(command: click.Command, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    return [path] + [verb_path for name, verb in command.commands.items() for verb_path in verbs(verb, (*path, name))]


def every_command() -> list[tuple[str, ...]]:
    context = click.Context(rollbus)
    return [
        verb for noun in COMMANDS for verb in verbs(rollbus.get_command(context, noun) or pytest.fail(noun), (noun,))
    ]


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    text = invoke(*command, "--help")
    assert text.startswith("Usage:")
    assert len(text.splitlines()) > 4


@pytest.mark.parametrize(
    ("words", "meant"), [(("demoo",), "demo"), (("sql", "lits"), "list"), (("policy", "rolback"), "rollback")]
)
def test_a_misspelled_command_is_answered_with_the_nearest(words: tuple[str, ...], meant: str) -> None:
    assert f"Did you mean '{meant}'?" in invoke(*words, expect=2)


def test_the_help_of_a_noun_cuts_no_sentence() -> None:
    assert "as arguments of Kafka's `kafka-acls --add`." in " ".join(invoke("topics", "--help").split())


def test_every_mistake_in_the_settings_is_shown_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text("kafka:\n  bootstrap_server: b:1\nruns:\n  - run_id: 'Main!'\n")
    text = invoke("--config", str(path), "topics", "check", expect=1)
    assert "line 2: kafka.bootstrap_server: is not a setting; did you mean 'bootstrap_servers'?" in text
    assert "line 4: runs[0].run_id" in text
    assert "Traceback" not in text


def test_a_shared_setting_is_refused_below_the_top(tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text("worker:\n  namespace: other.\n")
    assert "worker.namespace: is not a setting; did you mean namespace?" in invoke(
        "--config", str(path), "topics", "check", expect=1
    )


def test_two_values_of_a_label_are_not_forgotten_as_the_last_one_alone() -> None:
    output = invoke("forget", "--label", "user=ann", "--label", "user=bob", expect=1)
    assert "--label user=ann and --label user=bob: no episode has both" in output


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--value", "b"), "--value says what a chart draws; add --output chart, or leave --value out"),
        (("-o", "csv", "--value", "b"), "add --output chart, or leave --value out"),
        (("-o", "parquet"), "--output parquet needs --to FILE"),
    ],
)
@pytest.mark.parametrize("question", [("query", "SELECT 1"), ("run", "fates")])
def test_an_output_that_cannot_be_is_refused_before_anything_is_asked(
    question: tuple[str, ...], options: tuple[str, ...], remedy: str
) -> None:
    assert remedy in " ".join(invoke("sql", *question, *options, expect=2).split())


BLANK = [
    ("forget", "--episode", ""),
    ("export", "sft", "out", "--run", ""),
    ("export", "sft", "out", "--data-set", ""),
    ("dead-letters", "dismiss", "--all", "--reason", " "),
    ("run", "pause", "main", "--comment", ""),
    ("policy", "history", "--run", ""),
    ("finetune", "show", ""),
    ("worker", "run", "--stage", "scoring", "--stage", ""),
]


@pytest.mark.parametrize("arguments", BLANK, ids=" ".join)
def test_a_blank_text_of_an_option_is_refused_by_its_name(arguments: tuple[str, ...]) -> None:
    """As of a variable of the shell that is not set: an export of no run would be of all."""
    output = invoke(*arguments, expect=2)
    assert f"Invalid value for {arguments[-2]!r}" in output or "Invalid value for 'RUN'" in output
    assert f"{arguments[-1]!r} is blank; give a text, or leave it out" in output


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_refuses_blank_texts_and_numbers_that_are_not_finite(command: tuple[str, ...]) -> None:
    verb: click.Command = rollbus
    for name in command:
        assert isinstance(verb, click.Group)
        verb = verb.get_command(click.Context(verb), name) or pytest.fail(name)
    assert isinstance(verb, Verb | Verbs)
    for option in verb.params:
        assert isinstance(option.type, Number) or not isinstance(option.type, click.types.FloatParamType), option.name


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf"])
@pytest.mark.parametrize(
    "command", [("resample", "run", "a:b"), ("proxy", "run", "--upstream", "http://127.0.0.1:8/v1")]
)
def test_a_time_that_never_ends_or_is_over_already_is_refused(command: tuple[str, ...], seconds: str) -> None:
    assert "Invalid value for '--timeout'" in invoke(*command, "--timeout", seconds, expect=2)


@pytest.mark.parametrize("hours", ["1e9", "1e308"])
def test_an_overlap_that_no_calendar_has_is_refused_and_rotates_nothing(
    hours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    invoke("token", "create", "ann")
    assert f"--overlap {float(hours):g} is not a number of hours" in invoke(
        "token", "rotate", "ann", "--overlap", hours, expect=2
    )
    assert "ann    record   1" in invoke("token", "list")


def test_an_unknown_stage_is_answered_with_the_known_ones() -> None:
    text = invoke("worker", "run", "--stage", "assembley", expect=1)
    assert "no stage assembley" in text
    assert "curriculum.main" in text


def test_a_library_silenced_by_a_command_logs_again_afterwards() -> None:
    library = logging.getLogger("aiokafka")
    before = library.level
    invoke("topics", "graph")
    assert library.level == before


def test_loading_settings_leaves_pydantic_plugins_as_the_user_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (None, "logfire"):
        monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
        if given is not None:
            monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", given)
        SettingsFile(None).load()
        assert os.environ.get("PYDANTIC_DISABLE_PLUGINS") == given


def test_saved_questions_are_listed() -> None:
    assert "fate_of_every_trajectory" in invoke("sql", "list", COLUMNS="200")


def test_a_record_is_shown_with_every_metric_and_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"metric_{number}" for number in range(30)]
    show_record(make_step(metrics=dict.fromkeys(names, 1.0)))
    output = capsys.readouterr().out
    assert [name for name in names if f"'{name}'" not in output] == []
    assert output.endswith(")\n")


def test_a_worker_whose_judge_has_no_model_to_ask_does_not_start(tmp_path: Path) -> None:
    """Whichever stage of it asks; a worker of other stages does not ask."""
    judge, ranking = RewardConfig(type="judge", name="quality"), RewardConfig(type="judge_relative", name="ranking")
    run = RunConfig(grouping=GroupingConfig(rewards=(ranking,)))
    settings = Settings(scoring=ScoringConfig(rewards=(judge,)), runs=(run,))
    for stage, name in (("scoring", "quality"), ("group-scoring.main", "ranking")):
        with pytest.raises(ConfigurationError, match=f"reward {name} asks a model, .* `judge: base_url:`"):
            require_judge_model(settings, rewards_of(settings, select_stages(settings, [stage])))
    require_judge_model(settings, rewards_of(settings, select_stages(settings, ["assembly", "grouping.main"])))
    path = tmp_path / "rollbus.yaml"
    path.write_text("kafka: {bootstrap_servers: '127.0.0.1:1'}\nscoring: {rewards: [{type: judge, name: quality}]}\n")
    result = CliRunner().invoke(rollbus, ["--config", str(path), "worker", "run"])
    assert result.exit_code == 1
    assert "reward quality asks a model" in result.output


def test_a_number_has_its_noun_in_the_right_form() -> None:
    manifests = [format_count(number, "manifest") for number in (0, 1, 12_000)]
    assert manifests == ["0 manifests", "1 manifest", "12,000 manifests"]
    trajectories = [format_count(number, "trajectory", "trajectories") for number in (1, 2)]
    assert trajectories == ["1 trajectory", "2 trajectories"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.001, "0.1%"), (0.004, "0.4%"), (0.07, "7%"), (1 / 3, "33.33%"), (1.0, "100%")]
)
def test_a_small_share_is_not_shown_as_none(share: float, text: str) -> None:
    assert format_share(share) == text


def test_top_prints_each_look_into_a_pipe(tmp_path: Path) -> None:
    environment = {**os.environ, "ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}
    command = [ROLLBUS, "top", "--interval", "0.2"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = itertools.islice(process.stdout, 100)
        looks = itertools.islice((line for line in lines if "Kafka at 127.0.0.1:9 cannot be reached" in line), 2)
        assert len(list(looks)) == 2
        process.kill()


def test_status_names_the_unhealthy_parts_of_the_local_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken_socket:
        port = str(taken_socket.getsockname()[1])
        output = invoke(
            "status",
            expect=1,
            ROLLBUS_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:9",
            ROLLBUS_CLICKHOUSE__TIMEOUT_S="1",  # it connects to what never answers
            ROLLBUS_STACK__CLICKHOUSE_PORT=port,
        )
    last = output.splitlines()[-1]
    assert last.startswith("not well of the local stack on this machine: ")
    assert "clickhouse" in last


def test_the_error_that_ends_a_command_is_a_json_line_among_others(tmp_path: Path) -> None:
    (tmp_path / "rollbus.yaml").write_text("kafka: {bootstrap_servers: '127.0.0.1:9'}\n")
    output = invoke("-c", str(tmp_path / "rollbus.yaml"), "--log-format", "json", "topics", "check", expect=1)
    last = json.loads(output.splitlines()[-1])
    assert (last["level"], last["logger"]) == ("ERROR", "rollbus")
    assert last["message"].startswith("Kafka at 127.0.0.1:9 cannot be reached")


def test_the_file_of_the_folder_is_read_and_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    without = invoke("topics", "check", expect=1, ROLLBUS_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:9").splitlines()[0]
    assert (
        without
        == f"settings: the defaults, as there is no rollbus.yaml in {tmp_path}, with 1 of the environment over it"
    )
    (tmp_path / "rollbus.yaml").write_text("kafka: {bootstrap_servers: '127.0.0.1:8'}\n")
    output = invoke("topics", "check", expect=1).splitlines()
    assert output[0] == "settings: rollbus.yaml"
    assert "127.0.0.1:8" in output[1]
    (tmp_path / "other.yaml").write_text("kafka: {bootstrap_servers: '127.0.0.1:7'}\n")
    assert invoke("-c", "other.yaml", "topics", "check", expect=1).startswith("settings: other.yaml\n")


def test_a_socks_proxy_without_its_package_is_named_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    result = CliRunner().invoke(rollbus, ["alarms", "run", "--url", "https://hooks.example.com/x"])
    assert result.exit_code == 1
    assert "ALL_PROXY names a SOCKS proxy, which needs the package socksio; run: " in result.output
