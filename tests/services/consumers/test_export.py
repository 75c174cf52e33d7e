"""Exports from ClickHouse's real engine; `tests/readers` loads such files with the trainers that they are for."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.consumers.export.run import ExportRequest, export
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import event_id, messages_hash, trajectory_id
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.messages import message_fields
from tests.builders import START_MS, make_excluded, make_score, make_started, make_trajectory, make_turn
from tests.readers.files import rows_of
from tests.services.clickhouse.test_queries import new_database, write
from tests.services.commands import say, write_config

pytestmark = pytest.mark.services

REWARDS = {"e1": 1.0, "e2": 0.0, "e3": 0.5, "e4": 0.5, "e5": 1.0, "gone": 0.9}
"""e1 to e3 answer one prompt, e4 and e5 another; `gone` was excluded."""


def episode(name: str) -> list[tuple[str, Any]]:
    prompt = Message(role="user", content="first" if name in {"e1", "e2", "e3", "gone"} else "second")
    turns = [make_turn(name, 1, added_messages=(prompt,), text=f"answer of {name}", at_ms=START_MS)]
    if name == "e5":
        call = '[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]'
        turns = [replace(turns[0], completion=Message(role="assistant", tool_calls=call))]
    hint = f"example:play:{prompt.content}"
    trajectory = make_trajectory(name, group_hint=hint, labels={"user": "ada"})
    score = make_score(trajectory_id(name), REWARDS[name], episode_id=name, group_hint=hint)
    events = [("episode-events", event) for event in (make_started(name), *turns)]
    return [*events, ("trajectories", trajectory), ("scores", score)]


@pytest.fixture(scope="module")
def database(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    return new_database(clickhouse)


@pytest.fixture(scope="module")
def client(database: ClickHouseSettings) -> Iterator[ClickHouse]:
    client = ClickHouse(database)
    records = [record for name in REWARDS for record in episode(name)]
    store(client, [*records, ("exclusions", make_excluded("gone"))])
    yield client
    client.close()


def store(client: ClickHouse, records: list[tuple[str, Any]], namespace: str = "rollbus.") -> None:
    write(client, namespace, [(topic, "", record) for topic, record in records])


def request_of(**fields: Any) -> ExportRequest:
    return ExportRequest(**({"namespace": "rollbus."} | fields))


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_preference_pairs_load_as_a_data_set(client: ClickHouse, tmp_path: Path, file_format: Any) -> None:
    manifest = export(client, request_of(kind="dpo", file_format=file_format), tmp_path / "out")
    (file,) = manifest["files"]
    rows = rows_of(tmp_path / "out" / file["path"])
    assert [row["chosen"][0]["content"] for row in rows] == ["answer of e1", ""]
    assert [row["rejected"][0]["content"] for row in rows] == ["answer of e2", "answer of e4"]
    assert rows[1]["chosen"][0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert [row["prompt"][0]["content"] for row in rows] == ["first", "second"]
    assert (rows[0]["chosen_score"], rows[0]["rejected_score"]) == (1.0, 0.0)
    assert (rows[0]["chosen_id"], rows[0]["rejected_id"]) == (event_id("e1", "w1", 1), event_id("e2", "w1", 1))


def test_nemo_customizer_gets_its_two_files(client: ClickHouse, tmp_path: Path) -> None:
    request = request_of(kind="dpo", reader="nemo", exhaustive=True, min_margin=0.5, validation=0.5)
    manifest = export(client, request, tmp_path)
    assert [file["path"] for file in manifest["files"]] == [
        "training/training_file.jsonl",
        "validation/validation_file.jsonl",
    ]
    lines = [line for file in manifest["files"] for line in rows_of(tmp_path / file["path"])]
    assert {(line["chosen_response"], line["rejected_response"]) for line in lines} == {
        ("answer of e1", "answer of e2"),
        ("answer of e1", "answer of e3"),
        ("answer of e3", "answer of e2"),
    }
    assert all(line["prompt"] == [{"role": "user", "content": "first"}] for line in lines)
    assert manifest["left_out"] == {"pairs with tool calls, which NeMo Customizer does not pass on as they are": 1}


def test_a_filter_chooses_what_an_sft_set_is_made_of(client: ClickHouse, tmp_path: Path) -> None:
    request = request_of(kind="sft", where="reward >= 0.5 AND labels['user'] = 'ada' AND fate = 'pending'")
    export(client, request, tmp_path / "sft")
    rows = rows_of(tmp_path / "sft" / "train.parquet")
    assert sorted(row["trajectory_id"] for row in rows) == sorted(
        trajectory_id(name) for name in ("e1", "e3", "e4", "e5")
    )
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]
    export(client, request_of(kind="sft", sft_layout="prompt-completion", limit=1), tmp_path / "answers")
    (row,) = rows_of(tmp_path / "answers" / "train.parquet")
    assert (row["prompt"][0]["content"], row["completion"][0]["content"]) == ("first", "answer of e1")
    assert row["task"] == "play"


@pytest.mark.parametrize("kind", ["trajectories", "sft", "dpo", "evaluation"])
def test_a_filter_that_matches_nothing_is_refused_with_the_tasks_seen(
    client: ClickHouse, tmp_path: Path, kind: Any
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        export(client, request_of(kind=kind, where="task = 'chess'"), tmp_path / "out")
    assert str(refusal.value) == (
        "nothing was exported: no trajectory matches \"task = 'chess'\"; namespace 'rollbus.' has 5: tasks play; "
        "rewards from 0 to 1, 0 without one"
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigurationError, match=r"namespace 'empty\.' has no trajectory that is not excluded"):
        export(client, request_of(kind=kind, namespace="empty."), tmp_path / "out")


def test_exported_trajectories_have_tokens_and_a_manifest_of_exclusions(client: ClickHouse, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = export(
        client,
        request_of(kind="trajectories", tokens=True),
        tmp_path / "out",
        progress=lambda done, of: seen.append((done, of)),
    )
    assert (manifest["trajectories"], manifest["exclusions"]["episodes"], seen[-1]) == (5, 1, (5, 5))
    (file,) = manifest["files"]
    rows = rows_of(tmp_path / "out" / file["path"])
    assert "gone" not in [row["episode_id"] for row in rows]
    assert rows[0]["labels"] == [{"name": "user", "value": "ada"}]
    assert rows[0]["histories"][0]["token_ids"] == [1, 2, 3, 4, 5]
    assert rows[0]["histories"][0]["logprobs"] == [-0.5, -0.5]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest


def data_set_member(
    name: str, data_set: str = "gold", is_member: bool = True, at: int = 0
) -> tuple[str, DataSetMember]:
    record = DataSetMember(
        data_set=data_set,
        trajectory_id=trajectory_id(name),
        episode_id=name,
        is_member=is_member,
        changed_at_ms=START_MS + at,
    )
    return "data-sets", record


def test_a_data_set_holds_its_members_without_removed_ones(client: ClickHouse, tmp_path: Path) -> None:
    changes = [
        data_set_member("e2"),
        data_set_member("e3"),
        data_set_member("gone"),
        data_set_member("e3", is_member=False, at=1),
        data_set_member("e4", "silver"),
    ]
    store(client, changes)
    manifest = export(client, request_of(kind="sft", data_set="gold"), tmp_path / "gold")
    (row,) = rows_of(tmp_path / "gold" / "train.parquet")
    assert row["trajectory_id"] == trajectory_id("e2"), "an excluded episode stays out, also of what a user picked"
    assert manifest["request"]["data_set"] == "gold"
    with pytest.raises(ConfigurationError, match=r"data set 'golf' has no members; did you mean 'gold'\?"):
        export(client, request_of(kind="sft", data_set="golf"), tmp_path / "golf")


def test_an_evaluation_set_has_each_problem_once_with_its_best_answer(client: ClickHouse, tmp_path: Path) -> None:
    export(client, request_of(kind="evaluation"), tmp_path / "out")
    first, second = rows_of(tmp_path / "out" / "train.parquet")
    assert first["prompt"] == [{"role": "user", "content": "first"}]
    assert (first["reference"]["content"], first["reference_reward"], first["attempts"]) == ("answer of e1", 1.0, 3)
    assert second["reference"]["tool_calls"][0]["function"]["name"] == "f"
    assert (second["reference_reward"], second["attempts"]) == (1.0, 2)


def test_an_impossible_export_has_a_reason(client: ClickHouse, tmp_path: Path) -> None:
    export(client, request_of(kind="sft"), tmp_path)
    with pytest.raises(ConfigurationError, match="already holds an export"):
        export(client, request_of(kind="sft"), tmp_path)
    own_file = tmp_path / "mine" / "validation.parquet"
    own_file.parent.mkdir()
    own_file.write_text("mine")
    with pytest.raises(
        ConfigurationError, match=r"validation.parquet is there, .* it is yours, or of an export that was"
    ):
        export(client, request_of(kind="sft", validation=0.5), own_file.parent)
    assert (own_file.read_text(), list(own_file.parent.iterdir())) == ("mine", [own_file])
    refusals: list[tuple[dict[str, Any], str]] = [
        (
            {"kind": "dpo", "reader": "nemo", "file_format": "parquet"},
            r"\(--for nemo\) reads only jsonl",
        ),
        ({"kind": "dpo", "reader": "verl"}, "verl 0.9.1 .* does not read dpo: it has no trainer of preference pairs"),
        ({"kind": "evaluation", "reader": "openai"}, "does not read evaluation: it trains on conversations and pairs"),
        ({"kind": "sft", "reader": "axolotl", "sft_layout": "prompt-completion"}, "leave out --layout prompt-comp"),
    ]
    for fields, reason in refusals:
        with pytest.raises(ConfigurationError, match=reason):
            export(client, request_of(**fields), tmp_path / "b")


def test_turns_keep_the_order_of_their_writer_despite_its_clock(client: ClickHouse, tmp_path: Path) -> None:
    first = make_turn("back", 1, text="one", at_ms=START_MS + 5_000)
    first_messages = (*first.added_messages, first.completion)
    second = make_turn(
        "back",
        2,
        text="two",
        at_ms=START_MS,
        prefix_count=2,
        prefix_hash=messages_hash(map(message_fields, first_messages)),
    )
    trajectory = make_trajectory("back", group_hint="example:play:back")
    events = [("episode-events", event) for event in (make_started("back"), first, second)]
    store(client, [*events, ("trajectories", trajectory)], "clock.")
    manifest = export(client, request_of(namespace="clock.", kind="sft"), tmp_path)
    (row,) = rows_of(tmp_path / "train.parquet")
    assert [message["content"] for message in row["messages"]] == ["your move", "one", "your move", "two"]
    assert manifest["left_out"] == {}


def test_each_answer_has_the_tools_it_was_offered(client: ClickHouse, tmp_path: Path) -> None:
    offers = [("search", "[1]"), ("search", None), ("buy", "[2]")]
    turns = [
        make_turn("tools", number, text=f"answer {number}", at_ms=START_MS + number, tools_hash=offer, tools=text)
        for number, (offer, text) in enumerate(offers, start=1)
    ]
    trajectory = make_trajectory("tools", group_hint="example:play:tools")
    events = [("episode-events", event) for event in (make_started("tools"), *turns)]
    store(client, [*events, ("trajectories", trajectory)], "tools.")
    for layout in ("messages", "prompt-completion"):
        export(client, request_of(namespace="tools.", kind="sft", sft_layout=layout), tmp_path / layout)
        assert [row["tools"] for row in rows_of(tmp_path / layout / "train.parquet")] == [[1], [1], [2]]


def test_conversations_with_images_are_counted_and_not_exported(client: ClickHouse, tmp_path: Path) -> None:
    picture = Message(role="user", parts='[{"type":"image_url","image_url":{"url":"x"}}]')
    events = [
        ("episode-events", event) for event in (make_started("eye"), make_turn("eye", 1, added_messages=(picture,)))
    ]
    store(client, [*events, ("trajectories", make_trajectory("eye", group_hint="example:play:eye"))], "eye.")
    manifest = export(client, request_of(namespace="eye.", kind="trajectories"), tmp_path)
    assert rows_of(tmp_path / "train.parquet")[0]["conversations"] == []
    assert manifest["left_out"] == {"not text": 1}


def unanswered_episode(name: str, reason: str, said: str | None = None) -> list[tuple[str, Any]]:
    """An episode of problem `task-9` whose one call failed; `said` is what had come of the answer."""
    prompt = Message(role="user", content="ninth")
    turn = make_turn(name, 1, added_messages=(prompt,), untrainable=reason)
    turn = replace(turn, completion=Message(role="assistant", content=said))
    trajectory = make_trajectory(name, group_hint="example:play:ninth")
    return [("episode-events", make_started(name)), ("episode-events", turn), ("trajectories", trajectory)]


def test_a_call_that_failed_is_no_answer_to_train_on(client: ClickHouse, tmp_path: Path) -> None:
    records = [*unanswered_episode("refused", "call_failed"), *unanswered_episode("torn", "truncated_stream", "The or")]
    records += unanswered_episode("untraced", "no_content")
    prompt, answer = Message(role="user", content="ninth"), Message(role="assistant", content="")
    turn = replace(make_turn("silent", 1, added_messages=(prompt,)), completion=answer)
    trajectory = make_trajectory("silent", group_hint="example:play:ninth")
    store(client, [*records, ("episode-events", make_started("silent"))], "unanswered.")
    store(client, [("episode-events", turn), ("trajectories", trajectory)], "unanswered.")
    request = request_of(namespace="unanswered.", kind="sft")
    manifest = export(client, request, tmp_path / "sft")
    (row,) = rows_of(tmp_path / "sft" / "train.parquet")
    assert (row["trajectory_id"], row["messages"][-1]["content"]) == (trajectory_id("silent"), "")
    assert manifest["left_out"] == {"turns without a whole answer": 3}
    export(client, replace(request, kind="evaluation"), tmp_path / "evaluation")
    (problem,) = rows_of(tmp_path / "evaluation" / "train.parquet")
    assert (problem["prompt"][0]["content"], problem["attempts"]) == ("ninth", 4)


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_an_export_without_a_row_writes_nothing_and_says_why(
    client: ClickHouse, tmp_path: Path, file_format: Any
) -> None:
    request = request_of(kind="dpo", where="reward = 0.5", file_format=file_format, validation=0.5)
    with pytest.raises(ConfigurationError) as refusal:
        export(client, request, tmp_path / "out")
    assert str(refusal.value) == (
        "nothing was exported: 2 trajectories gave no row; left out: 2 answers without a preference; "
        "a pair is two answers to one prompt, with different rewards"
    )
    assert not (tmp_path / "out").exists()


@pytest.fixture
def settings_path(client: ClickHouse, database: ClickHouseSettings, tmp_path: Path) -> Path:
    place = {"host": database.host, "port": database.port, "database": database.database}
    return write_config(tmp_path, "127.0.0.1:1", "rollbus.", clickhouse=place)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("rewards > 1", "Unknown expression or function identifier `rewards`"),
        ("task", "Invalid type for filter in WHERE: LowCardinality(String)"),
        ("reward >", "Syntax error"),
        ("1 = 1; DROP TABLE scores", "Syntax error (Multi-statements are not allowed)"),
        ("count() > 1", "Aggregate function count() is found in WHERE in query"),
    ],
)
def test_a_filter_that_is_no_condition_is_refused_with_the_columns(
    settings_path: Path, tmp_path: Path, where: str, reason: str
) -> None:
    output = say(settings_path, "export", "sft", str(tmp_path / "out"), "--where", where, expect=1)
    assert f"Error: --where {where!r} is not a condition that ClickHouse takes: {reason}" in output
    assert output.endswith("fate, step, reason\n")
    assert "write one over the columns trajectory_id, episode_id" in output
    assert "SELECT" not in output


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (("sft", "--where", "reward >= 0.5"), {"train": 4}),
        (("sft", "--limit", "2"), {"train": 2}),
        (("sft", "--validation", "0.5"), {"train": 2, "validation": 3}),
        (("sft", "--layout", "prompt-completion", "--limit", "1"), {"train": 1}),
        (("dpo",), {"train": 2}),
        (("dpo", "--min-margin", "0.6"), {"train": 1}),
        (("dpo", "--exhaustive"), {"train": 4}),
        (("dpo", "--exhaustive", "--max-pairs", "1"), {"train": 2}),
        (("evaluation", "--limit", "1"), {"train": 1}),
    ],
    ids=lambda value: " ".join(value),
)
def test_an_option_of_an_export_says_what_is_in_its_files(
    settings_path: Path, tmp_path: Path, words: tuple[str, ...], counts: dict[str, int]
) -> None:
    kind, *options = words
    say(settings_path, "export", kind, str(tmp_path / "out"), "--format", "jsonl", *options)
    files = (tmp_path / "out").glob("*.jsonl")
    assert {file.stem: len(file.read_text().splitlines()) for file in files} == counts
