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
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(Example, path, {})
    assert str(refusal.value).splitlines()[1:] == [
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


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka:\n  timeout_ms: 5\n")
    settings = load_settings(Example, path, {"ROLLBUS_KAFKA__TIMEOUT_MS": "9", "ROLLBUS_HOME": "/elsewhere"})
    assert settings.kafka.timeout_ms == 9


def test_a_secret_is_never_printed(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka:\n  password: [hunter2]\n")
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(Example, path, {})
    assert "hunter2" not in str(refusal.value)
    good = load_settings(Example, write(tmp_path, "kafka:\n  password: hunter2\n"), {})
    assert "hunter2" not in str(good)


@pytest.mark.parametrize("keys", ["owner: hunter2", "owner: [hunter2]", "owner: 77777", "sources: {checker: hunter2}"])
def test_a_key_that_is_too_short_is_not_printed(tmp_path: Path, keys: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load_settings(Settings, write(tmp_path, f"signing: {{{keys}}}\n"), {})
    assert "hunter2" not in str(refusal.value)
    assert "77777" not in str(refusal.value)


@pytest.mark.parametrize("word", ["@tail", "123456", "with #mark", "a: b", "[x", "007", "no", '"quoted"', "2024-99-99"])
def test_a_text_in_the_environment_is_taken_verbatim(tmp_path: Path, word: str) -> None:
    by_name = load_settings(Example, None, {"ROLLBUS_KAFKA__PASSWORD": word, "ROLLBUS_NAMESPACE": word})
    filled = load_settings(
        Example, write(tmp_path, "kafka: {password: '${WORD}'}\nnamespace: ${WORD}\n"), {"WORD": word}
    )
    for settings in (by_name, filled):
        assert settings.kafka.password is not None
        assert (settings.kafka.password.get_secret_value(), settings.namespace) == (word, word)


def test_the_environment_can_set_none(tmp_path: Path) -> None:
    path = write(tmp_path, "kafka: {password: hunter2}\n")
    assert load_settings(Example, path, {"ROLLBUS_KAFKA__PASSWORD": "null"}).kafka.password is None


def test_a_yaml_keyword_is_text_where_text_is_expected(tmp_path: Path) -> None:
    path = write(tmp_path, "runs: [{run_id: 2024-11-05, model: 7, curriculum: {mode: off}}]\n")
    (run,) = load_settings(Settings, path, {}).runs
    assert (run.run_id, run.model, run.curriculum.mode) == ("2024-11-05", "7", "off")


def test_a_variable_fills_a_section_that_the_file_leaves_empty(tmp_path: Path) -> None:
    assert load_settings(Example, write(tmp_path, "kafka:\n"), {"ROLLBUS_KAFKA__TIMEOUT_MS": "9"}).kafka.timeout_ms == 9


SECTION = "ROLLBUS_KAFKA__TIMEOUT_MS"
MISTAKES: list[tuple[str, dict[str, str], str]] = [
    ("kafka:\n  bootstrap_servers: ${NOWHERE}\n", {}, "line 2: kafka.bootstrap_servers: ${NOWHERE} is not set"),
    ("namespace: a\nnamespace: b\n", {}, "line 2: namespace is given twice"),
    ("namespace: !mine x\n", {}, "line 1"),
    ("kafka: {timeout_ms: 2024-99-99}\n", {}, "line 1"),
    ('kafka:\n  timeout_ms: !!int ""\n', {}, "line 2: kafka.timeout_ms: the value is not what its tag !!int says"),
    ("namespace: !!timestamp soon\nkafka: {timeout_ms: !!bool maybe}\n", {}, "not what its tag !!bool says"),
    ("", {SECTION: '!!float ""'}, f"environment {SECTION}: kafka.timeout_ms"),
    ("- a\n", {}, "must be a mapping"),
    ("just text", {}, "must be a mapping"),
    ("a: [1,\n", {}, "is not YAML"),
    ("a: 'x\n", {}, "is not YAML"),
    ("a: [b", {}, "is not YAML"),
    ("", {SECTION: "never"}, f"environment {SECTION}: kafka.timeout_ms"),
    ("", {"ROLLBUS_KAFAK__X": "5"}, "environment ROLLBUS_KAFAK__X: kafak is not a section; did you mean 'kafka'?"),
    ("", {"ROLLBUS_KAFKA_TIMEOUT_MS": "5"}, f"did you mean {SECTION}"),
    ("runs: [{timeout_ms: 1}]\n", {"ROLLBUS_RUNS__0__X": "1"}, "environment ROLLBUS_RUNS__0__X: runs holds no names"),
    ("namespace: x\n", {"ROLLBUS_NAMESPACE__X": "1"}, "environment ROLLBUS_NAMESPACE__X: namespace holds no names"),
]


@pytest.mark.parametrize(("text", "environment", "message"), MISTAKES)
def test_a_mistake_is_shown_with_its_place(
    tmp_path: Path, text: str, environment: dict[str, str], message: str
) -> None:
    path = write(tmp_path, text) if text else None
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_settings(Example, path, environment | {"ROLLBUS_HOME": "/elsewhere"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("art_server: {token: '${TOKEN:-}'}", r"art_server\.token: .* at least 1"),
        ("namespace: 'a b'", "namespace: .*letters, digits"),
        ("namespace: prod/", "namespace: .*letters, digits"),
        (f"namespace: {'n' * 121}", "namespace: .*letters, digits"),
        ("trainer: {train: {learning_rate: .inf}}", "learning_rate: .* finite"),
        ("a: &a {b: [*a]}", "nested without end"),
        (f"a: {'[' * 600}{']' * 600}", "nested without end"),
        ("stack: {clickhouse_port: 99999}", r"stack\.clickhouse_port: Input should be less than 65536"),
        ("stack: {clickhouse_port: 0}", r"stack\.clickhouse_port: Input should be greater than 0"),
        ("stack: {clickhouse_port: 9092}", "stack: port 9092 is given to several services"),
        ("runs: [{filter: {tasks: refund}}]", r"tasks: Input should be a list, such as \[refund\]"),
        (
            "stack: 21400",
            r"line 1: stack: Input should have settings of its own, such as \{name: value\} \(got 21400\)",
        ),
        ("trainer: {backend: {type: art-local}}", "art-local needs `art_server: base_model:`"),
        ("trainer: {backend: {type: tinker}}", "tinker needs `art_server: tinker:`"),
        (
            "trainer: {backend: {type: art-local}}\n"
            "art_server: {base_model: b, tinker: {url: 'http://127.0.0.1:9', base_model: m}}",
            "art-local holds the model here",
        ),
        ("trainer: {backend: {type: art-local, precision: auto}}", r"backend\.art-local\.precision: is not a setting"),
        ("trainer: {art_server: {model: m}}", r"trainer\.art_server: is not a setting; did you mean art_server\?"),
        ("worker: {kafka: {}}", r"worker\.kafka: is not a setting; did you mean kafka\?"),
        (
            "trainer: {max_share_per_source: {user: 0.5}}",
            r"did you mean runs\.batching\.max_share_per_source\?",
        ),
        ("scoring: {rewards: [{weight: .nan}]}", "weight: .* finite"),
        (
            "runs: [{grouping: {rewards: [{type: judge_relative, weight: 0, share: 0.1}]}}]",
            r"rewards\[0\]\.share: is not a setting",
        ),
        ("scoring: {clip_low: 1, clip_high: -1}", "clip_low 1.0 is not below clip_high -1.0"),
        (
            "runs: [{grouping: {rewards: [{type: judge_relative}]}}]",
            "the names of components .*: reward; give each its own",
        ),
        ("runs: [{model: team@eu}]", r"model: .*'team@eu' has an `@`, where the version of a model begins"),
        ("runs: [{filter: {models: [agent, agent@3]}}]", r"models\[1\]: .*write the name before it alone"),
        ("assembly: {target_model: agent@3}", r"target_model: .*write the name before it alone"),
    ],
    ids=range(26),
)
def test_an_invalid_value_is_named_with_its_setting(tmp_path: Path, text: str, message: str) -> None:
    """An empty token is not a wish for none, and a number without end trains nothing."""
    with pytest.raises(ConfigurationError, match=message):
        load_settings(Settings, write(tmp_path, text), {})


def test_a_stack_on_other_ports_is_the_one_that_is_used(tmp_path: Path) -> None:
    ports = "stack: {kafka_port: 19092, clickhouse_port: 18123}\n"
    stack_settings = load_settings(Settings, write(tmp_path, ports), {}).with_stack_addresses()
    assert (stack_settings.kafka.bootstrap_servers, stack_settings.clickhouse.port) == ("127.0.0.1:19092", 18123)
    named = ports + "kafka: {bootstrap_servers: 'b:1'}\nclickhouse: {host: c}\n"
    other = load_settings(Settings, write(tmp_path, named), {}).with_stack_addresses()
    assert (other.kafka.bootstrap_servers, other.clickhouse.port) == ("b:1", 8123)


def test_an_unreadable_or_absent_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    for file, message in ((path, "is not YAML"), (tmp_path / "absent.yaml", "cannot be read")):
        with pytest.raises(ConfigurationError, match=message):
            load_settings(Example, file, {})


def test_an_invalid_kafka_port_is_one_mistake(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("stack: {kafka_port: 99999999}\n")
    with pytest.raises(ConfigurationError, match="1 mistake in the settings") as refusal:
        load_settings(Settings, tmp_path / "s.yaml", {})
    assert "stack.kafka_port: Input should be less than 65536 (got 99999999)" in str(refusal.value)


def test_ports_that_are_not_named_come_after_another_kafka_port() -> None:
    stack = Settings.model_validate({"stack": {"kafka_port": 21400, "model_port": 9999}}).stack
    ports = stack.clickhouse_port, stack.art_port, stack.model_port
    assert ports == (21401, 21402, 9999)
    assert Settings.model_validate({"stack": {"kafka_port": "21400", "model_port": 9999}}).stack == stack
    usual = Settings.model_validate({"stack": {"kafka_port": 9092}}).stack
    assert usual == Settings().stack


def test_a_trainer_without_a_port_of_its_own_is_a_mistake() -> None:
    """Its process would end with an OverflowError of the socket."""
    runs = [{"run_id": name, "model": name} for name in ("a", "b", "c")]
    with pytest.raises(ValueError, match="gives the trainer of run c the port 65536, and 65535 is the highest"):
        Settings.model_validate({"runs": runs, "health": {"metrics_ports": {"trainer": 65516}}})
    settings = Settings.model_validate({"runs": runs, "health": {"metrics_ports": {"trainer": 65515}}})
    assert settings.heart("trainer", "c").metrics_port == 65535
