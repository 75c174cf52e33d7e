"""What Langfuse's server gives of the same calls, by its API and its exports, is read as its SDK's own spans are.

The files are of Langfuse 4.16.0. Each has the cases of `exports/making`, and of each case what was asked of the server:
a trace with all it holds, pages of observations of both versions of the API, a session, the rows of both exports to
blob storage, and those of the UI's exports.

They were made on 2026-11-29 by the server's own handlers of the API (within Next's resolver, without Next's server),
its worker and its jobs of export, built from source in the mode `dual`, with PostgreSQL, Redis, an S3 store, and for
ClickHouse rollbus's endpoint on chDB 26.9 with `input_format_read_datetime_number_as_raw_value`, which Langfuse needs
since ClickHouse 26.8. The scores came by SDK 4.18.0: this server does not take those of 5.0.4.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollbus.producers.imports.formats.trace import ForeignDocumentError
from tests.producers.imports.formats.reading import Read
from tests.producers.imports.formats.test_exports import FILES, reading_of

EXPORTS = Path(__file__).parent / "exports"
SDK_FILES = {
    "langfuse-server-4.16.0-sdk-5.0.4": "langfuse-5.0.4",
    "langfuse-server-4.16.0-sdk-5.0.4-langchain-1.5.2": "langfuse-5.0.4-langchain-1.5.2",
    "langfuse-server-4.16.0-sdk-4.18.0": "langfuse-5.0.4",
    "langfuse-server-4.16.0-sdk-4.18.0-langchain-1.5.2": "langfuse-5.0.4-langchain-1.5.2",
}
"""A server's file, and that of the SDK's spans, whose readings it shares."""


@cache
def load(name: str) -> Any:
    """The documents of a file, by case and form."""
    return json.loads((EXPORTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", SDK_FILES)
def test_every_form_of_a_servers_answers_gives_the_same_calls(name: str) -> None:
    for case, documents_by_form in load(name).items():
        for form, documents in documents_by_form.items():
            read = Read("langfuse", documents)
            assert reading_of(read) == FILES[SDK_FILES[name]][case], (case, form)
            reasons = {turn.untrainable_reason for turn in read.turns}
            assert ("failed_call" in reasons) == (case == "failed") or case == "left early"
            if read.tools:
                assert {turn.function for turn in read.turns} == {"keeper"}


@pytest.mark.parametrize("name", SDK_FILES)
def test_every_form_has_the_traces_name_and_labels(name: str) -> None:
    for case, documents_by_form in load(name).items():
        read_by_form = {form: Read("langfuse", documents) for form, documents in documents_by_form.items()}
        for form, read in read_by_form.items():
            assert read.started.task == case
            labels = read.started.labels
            assert labels == next(iter(read_by_form.values())).started.labels, (case, form)
            assert labels.items() >= {"user": "ann", "tags": "beta,eu", "tier": "gold"}.items()


@pytest.mark.parametrize("name", SDK_FILES)
def test_an_offered_tool_is_read_from_every_form(name: str) -> None:
    for form, documents in load(name)["tools"].items():
        first = Read("langfuse", documents).turns[0]
        (tool,) = json.loads(first.tools or "[]")
        assert tool["function"]["parameters"]["required"] == ["item"], form


def test_repeated_fields_and_sender_fields_are_not_counted_as_unread() -> None:
    for documents_by_form in load("langfuse-server-4.16.0-sdk-5.0.4").values():
        for documents in documents_by_form.values():
            unread = Read("langfuse", documents).unmapped
            assert not [field for field in unread if "tokens" in field or "usage" in field or "scope" in field], unread


@pytest.mark.parametrize("form", ["v1", "v2", "v3", "blobs", "ui"])
def test_scores_are_read_the_same_from_every_form(form: str) -> None:
    trace = load("langfuse-server-4.16.0-sdk-5.0.4")["plain"]["observations v2"]
    read = Read("langfuse", [*trace, *load("langfuse-server-4.16.0-others")["scores"][form]])
    (turn,) = read.turns
    rewards = sorted((reward.name, reward.value, reward.comment, reward.turn_event_id) for reward in read.rewards)
    assert rewards == [("correct", 1.0, "as the book says", turn.event_id), ("helpful", 0.5, "slow", None)]
    assert read.unmapped["langfuse.score without a number"] == 2
    assert "langfuse.score.trace" not in read.unmapped


def test_scores_without_subjects_are_refused_with_the_fields_to_request() -> None:
    with pytest.raises(ForeignDocumentError, match="fields=core,details,subject"):
        Read("langfuse", load("langfuse-server-4.16.0-others")["scores without subjects"])


def test_the_manifest_of_an_export_gives_no_events() -> None:
    assert Read("langfuse", [load("langfuse-server-4.16.0-others")["manifest"]]).events == []


def test_observations_without_their_texts_are_turns_without_content() -> None:
    (turn,) = Read("langfuse", load("langfuse-server-4.16.0-others")["observations v2 without fields"]).turns
    assert turn.untrainable_reason == "no_content"
