"""Tokens are made once, listed, rotated and ended; a door follows what is ended without a restart."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rollbus.runtime.credentials import (
    AGENT_TOKEN,
    FOLDER_VARIABLE,
    PRINCIPAL_VARIABLE,
    REPORTER_TOKEN,
    TOKEN,
    TOKEN_VARIABLE,
    find_own_token,
    make_secrets,
    read_secret,
    read_token,
    record_ports,
)
from rollbus.runtime.principals import PrincipalBook, end, endings, issue, make_principals, read_tokens, rotate
from rollbus.schemas.errors import ConfigurationError

NOW = datetime(2026, 11, 28, tzinfo=UTC)


def test_a_name_has_one_token_until_it_is_rotated_or_ended(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    first = issue(folder, "agent-7", ("record", "feedback"), NOW)
    with pytest.raises(ConfigurationError, match="token rotate agent-7"):
        issue(folder, "agent-7", ("record",), NOW)
    second = rotate(folder, "agent-7", NOW, timedelta(hours=1))
    assert endings(folder) == {"agent-7.1": NOW + timedelta(hours=1)}
    end(folder, "agent-7", NOW)
    assert endings(folder) == {"agent-7.1": NOW, "agent-7.2": NOW}
    third = issue(folder, "agent-7", ("record",), NOW)
    assert len({first, second, third}) == 3
    assert read_tokens(folder)["agent-7"].principal.generation == 3
    assert (folder / "principals").stat().st_mode & 0o777 == 0o600


def call_at_once(call: Callable[[int], object], count: int = 4) -> None:
    """Call a function in several threads at the same time; raises what one of them raises."""
    start = threading.Barrier(count)

    def run(number: int) -> object:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def test_processes_that_begin_at_once_leave_tokens_that_count(tmp_path: Path) -> None:
    for attempt in range(20):
        folder = tmp_path / str(attempt)

        def begin(_: int, folder: Path = folder) -> None:
            make_secrets(folder)
            make_principals(folder)

        call_at_once(begin)
        book = PrincipalBook(folder)
        assert all(book(read_secret(folder, name) or "") for name in (AGENT_TOKEN, REPORTER_TOKEN))
        assert {token.principal.generation for token in read_tokens(folder).values()} == {1}


def test_names_that_are_made_at_once_are_all_in_the_list(tmp_path: Path) -> None:
    for attempt in range(20):
        folder = tmp_path / str(attempt)

        def issue_one(number: int, folder: Path = folder) -> None:
            issue(folder, f"agent-{number}", ("record",), NOW)

        call_at_once(issue_one)
        assert len(read_tokens(folder)) == 4


def test_an_empty_credential_is_made_again(tmp_path: Path) -> None:
    (tmp_path / TOKEN).write_text("\n")
    make_secrets(tmp_path)
    assert read_secret(tmp_path, TOKEN) is not None


def test_a_door_refuses_tokens_that_ended_meanwhile(tmp_path: Path) -> None:
    token = issue(tmp_path, "agent-7", ("record",), NOW)
    book = PrincipalBook(tmp_path)
    principal = book(token)
    assert principal is not None
    assert principal.name == "agent-7"
    end(tmp_path, "agent-7", datetime.now(UTC))
    assert book(token) is None
    assert book("rb.agent-7.r.2.x") is None


def test_a_folder_without_a_key_knows_no_principal(tmp_path: Path) -> None:
    assert PrincipalBook(tmp_path)("rb.agent-7.r.1.x") is None


LINE = b'{"name": "a", "may": ["record"], "generation": 1, "made_at": "2026-01-01T00:00:00+00:00", "ended_at": %s}'


@pytest.mark.parametrize("text", [b"{", LINE % b"null", LINE % b"[]", b"\xff\xfe"])
def test_a_list_that_is_torn_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "principals").write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"holds no list of principals|is not text in UTF-8"):
        read_tokens(tmp_path)


def test_programs_find_their_tokens_of_the_local_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.delenv(PRINCIPAL_VARIABLE, raising=False)
    make_secrets(tmp_path)
    make_principals(tmp_path)
    agent = read_secret(tmp_path, AGENT_TOKEN)
    make_principals(tmp_path)
    assert agent == read_secret(tmp_path, AGENT_TOKEN), "they are made once"
    assert {name: sorted(token.principal.grants) for name, token in read_tokens(tmp_path).items()} == {
        "agent": ["feedback", "record"],
        "reporter": ["feedback"],
    }
    (tmp_path / REPORTER_TOKEN).unlink()
    make_principals(tmp_path)
    assert read_tokens(tmp_path)["reporter"].principal.generation == 2
    record_ports(tmp_path, 8000)
    assert read_token("http://127.0.0.1:8000/v1") == agent, "an agent's key, not the owner's"
    assert find_own_token("127.0.0.1:9092") == agent
    assert find_own_token("broker.example:9092") is None
    monkeypatch.setenv(FOLDER_VARIABLE, f"/proc/1/fd/{'x' * 300}")
    assert find_own_token("127.0.0.1:9092") is None, "a folder that cannot be read ends no agent"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(PRINCIPAL_VARIABLE, "rb.x.r.1.y")
    assert (read_token("http://127.0.0.1:9/v1"), find_own_token("broker.example:9092")) == ("rb.x.r.1.y",) * 2
    assert read_token("http://model.example/v1") == "none", "it leaves this machine to no model server"
