"""Settings are parsed once, and every mistake is reported together with its place."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from rollbus.schemas.errors import ConfigurationError
from rollbus.settings import Settings
from rollbus.settings_file import load_settings


class Broker(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    bootstrap_servers: str = "127.0.0.1:9092"
    timeout_ms: int = Field(default=1000, gt=0)
    password: SecretStr | None = None


class Example(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    namespace: str = "rollbus."
    kafka: Broker = Broker()
    runs: tuple[Broker, ...] = ()


def write(folder: Path, text: str) -> Path:
    path = folder / "rollbus.yaml"
    path.write_text(text)
    return path


def test_without_file_and_environment_the_defaults_hold() -> None:
    assert load_settings(Example, None, {}) == Example()


def test_every_mistake_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path, "kafka:\n  timeout_ms: 0\n  bootstrap_server: b:1\nruns:\n  - timeout_ms: soon\nnamspace: x\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_settings(Example, path, {})
    assert str(caught.value).splitlines()[1:] == [
        "  line 2: kafka.timeout_ms: Input should be greater than 0 (got 0)",
        "  line 3: kafka.bootstrap_server: is not a setting; did you mean 'bootstrap_servers'?",
        "  line 5: runs[0].timeout_ms: Input should be a valid integer, unable to parse string as an integer"
        " (got 'soon')",
        "  line 6: namspace: is not a setting; did you mean 'namespace'?",
    ]


def test_variables_are_filled_in_and_keep_their_type(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka:\n  bootstrap_servers: ${HOST}:${PORT:-9092}\n  timeout_ms: ${TIMEOUT}\n")
    settings = load_settings(Example, path, {"HOST": "broker", "TIMEOUT": "70"})
    assert settings.kafka == Broker(bootstrap_servers="broker:9092", timeout_ms=70)


def test_a_missing_variable_is_named_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka:\n  bootstrap_servers: ${NOWHERE}\n")
    with pytest.raises(ConfigurationError, match=r"line 2: kafka\.bootstrap_servers: \$\{NOWHERE\} is not set"):
        load_settings(Example, path, {})


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka:\n  timeout_ms: 5\n")
    settings = load_settings(Example, path, {"ROLLBUS_KAFKA__TIMEOUT_MS": "9", "ROLLBUS_HOME": "/elsewhere"})
    assert settings.kafka.timeout_ms == 9


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"environment ROLLBUS_KAFKA__TIMEOUT_MS: kafka\.timeout_ms"):
        load_settings(Example, None, {"ROLLBUS_KAFKA__TIMEOUT_MS": "never"})


def test_a_variable_of_a_section_that_is_not_there_is_a_mistake() -> None:
    told = "environment ROLLBUS_KAFAK__TIMEOUT_MS: kafak is not a section; did you mean 'kafka'?"
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        load_settings(Example, None, {"ROLLBUS_KAFAK__TIMEOUT_MS": "5", "ROLLBUS_HOME": "/elsewhere"})


def test_a_variable_with_one_underscore_between_the_levels_is_a_mistake() -> None:
    with pytest.raises(
        ConfigurationError, match=r"ROLLBUS_KAFKA_TIMEOUT_MS: .* did you mean ROLLBUS_KAFKA__TIMEOUT_MS"
    ):
        load_settings(Example, None, {"ROLLBUS_KAFKA_TIMEOUT_MS": "5"})


def test_a_secret_is_never_printed(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka:\n  password: [hunter2]\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(Example, path, {})
    assert "hunter2" not in str(caught.value)
    good = load_settings(Example, write(tmp_path, "kafka:\n  password: hunter2\n"), {})
    assert "hunter2" not in str(good)


@pytest.mark.parametrize("text", ["a: &a {b: [*a]}", "a: " + "[" * 3_000 + "]" * 3_000])
def test_a_file_without_an_end_is_refused_in_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="nested without end"):
        load_settings(Settings, path, {})


def test_a_key_given_twice_is_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, "namespace: a\nnamespace: b\n")
    with pytest.raises(ConfigurationError, match="line 2: namespace is given twice"):
        load_settings(Example, path, {})


@pytest.mark.parametrize("text", ["- a\n", "just text"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        load_settings(Example, write(tmp_path, text), {})


def test_broken_yaml_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not YAML"):
        load_settings(Example, write(tmp_path, "a: [1,\n"), {})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(Example, tmp_path / "absent.yaml", {})


def test_an_empty_token_of_the_server_is_a_mistake_and_not_the_wish_for_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"art_server\.token: .* at least 1"):
        load_settings(Settings, write(tmp_path, "art_server: {token: '${TOKEN:-}'}"), {})


@pytest.mark.parametrize("namespace", ["a b", "prod/", "n" * 121])
def test_a_namespace_that_begins_no_name_of_a_topic_is_a_mistake(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(ConfigurationError, match=r"namespace: .*letters, digits"):
        load_settings(Settings, write(tmp_path, f"namespace: '{namespace}'"), {})


def test_a_number_without_end_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text("trainer: {train: {learning_rate: .inf}}")
    with pytest.raises(ConfigurationError, match=r"learning_rate: .* finite"):
        load_settings(Settings, path, {})


@pytest.mark.parametrize("said", ["@tail", "123456", "with #mark", "a: b", "[x", "007", "no", '"quoted"', "2024-99-99"])
def test_a_text_of_the_environment_is_taken_letter_by_letter(tmp_path: Path, said: str) -> None:
    by_name = load_settings(Example, None, {"ROLLBUS_KAFKA__PASSWORD": said, "ROLLBUS_NAMESPACE": said})
    filled = load_settings(
        Example, write(tmp_path, "kafka: {password: '${WORD}'}\nnamespace: ${WORD}\n"), {"WORD": said}
    )
    for settings in (by_name, filled):
        assert settings.kafka.password is not None
        assert (settings.kafka.password.get_secret_value(), settings.namespace) == (said, said)


def test_none_can_still_be_said_in_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka: {password: hunter2}\n")
    assert load_settings(Example, path, {"ROLLBUS_KAFKA__PASSWORD": "null"}).kafka.password is None


def test_a_word_that_yaml_has_another_idea_of_is_text_where_text_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "runs: [{run_id: 2024-11-05, model: 7, curriculum: {mode: off}}]\n")
    (run,) = load_settings(Settings, path, {}).runs
    assert (run.run_id, run.model, run.curriculum.mode) == ("2024-11-05", "7", "off")


@pytest.mark.parametrize("text", ["namespace: !mine x\n", "kafka: {timeout_ms: 2024-99-99}\n", "a: 'x\n", "a: [b"])
def test_a_value_that_yaml_cannot_read_is_a_mistake(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1|not YAML"):
        load_settings(Example, write(tmp_path, text), {})


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="is not YAML"):
        load_settings(Example, path, {})


def test_a_variable_fills_a_section_that_the_file_leaves_empty(tmp_path: Path) -> None:
    assert load_settings(Example, write(tmp_path, "kafka:\n"), {"ROLLBUS_KAFKA__TIMEOUT_MS": "9"}).kafka.timeout_ms == 9


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("runs: [{timeout_ms: 1}]\n", "ROLLBUS_RUNS__0__TIMEOUT_MS", "runs"),
        ("namespace: x\n", "ROLLBUS_NAMESPACE__X", "namespace"),
    ],
)
def test_a_variable_below_what_is_no_section_is_a_mistake(tmp_path: Path, text: str, name: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=f"environment {name}: {place} holds no names"):
        load_settings(Example, write(tmp_path, text), {name: "1"})


@pytest.mark.parametrize(
    ("ports", "told"),
    [
        ("clickhouse_port: 99999", "stack.clickhouse_port: Input should be less than 65536"),
        ("kafka_controller_port: 0", "stack.kafka_controller_port: Input should be greater than 0"),
        ("clickhouse_port: 9092", "stack: port 9092 is given to several services"),
    ],
)
def test_ports_that_the_local_stack_cannot_listen_on_are_mistakes(tmp_path: Path, ports: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load_settings(Settings, write(tmp_path, f"stack: {{{ports}}}\n"), {})
