"""Two users with passwords; what the one that only reads must not be able to do."""

import gzip
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from rollbus.local.clickhouse.reader_role import READONLY_AT_ONCE
from rollbus.local.process.ports import find_free_port
from rollbus.stack_settings import HOST
from tests.services.endpoint.guarded_endpoint import Guarded, guarded, running_endpoint

__all__ = ["guarded"]
pytestmark = pytest.mark.services

LONG_ANSWER = "SELECT repeat('x', 100) FROM numbers(900000)"
READONLY, OUTFILE, SYNTAX = 164, 319, 62
LIMITS = {158, 159, 160, 241, 307, 396}
"""TOO_MANY_ROWS, TIMEOUT_EXCEEDED, TOO_SLOW, MEMORY_LIMIT_EXCEEDED, TOO_MANY_BYTES, TOO_MANY_ROWS_OR_BYTES."""


@pytest.fixture
def reader(guarded: Guarded) -> Iterator[Client]:
    with guarded.client("readonly") as client:
        yield client


def code_of(client: Client, statement: str, **options: object) -> int | None:
    with pytest.raises(DatabaseError) as refusal:
        client.command(statement, **options)  # type: ignore[arg-type]
    return refusal.value.code


@pytest.mark.parametrize("user", ["default", "readonly", "somebody"])
@pytest.mark.parametrize("password", ["", "wrong", "owner's secre"])
def test_an_unknown_user_or_a_wrong_password_is_refused(guarded: Guarded, user: str, password: str) -> None:
    with pytest.raises(DatabaseError) as refusal:
        guarded.client(user, password)
    assert refusal.value.code == 516


def test_the_passwords_of_the_two_users_are_not_exchanged(guarded: Guarded) -> None:
    with pytest.raises(DatabaseError):
        guarded.client("default", guarded.reader_password)
    with guarded.client("readonly") as reader:
        assert reader.command("SELECT count() FROM numbers") == 1000


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO numbers VALUES (1, 'a')",
        "INSERT INTO FUNCTION file('{folder}/out.csv', 'CSV', 'x UInt8') VALUES (1)",
        "CREATE TABLE mine (x UInt8) ENGINE = Memory",
        "CREATE TEMPORARY TABLE mine (x UInt8)",
        "DROP TABLE numbers",
        "TRUNCATE TABLE numbers",
        "ALTER TABLE numbers DELETE WHERE 1",
        "OPTIMIZE TABLE numbers FINAL",
        "ATTACH TABLE numbers",
        "SET readonly = 0",
        "SET max_memory_usage = 0",
        "SELECT 1 SETTINGS readonly = 0",
        "SELECT 1 SETTINGS max_memory_usage = 0",
        "SELECT 1 SETTINGS max_execution_time = 0",
        "KILL QUERY WHERE 1",
        "KILL MUTATION WHERE 1",
        "SYSTEM SHUTDOWN",
        "SYSTEM STOP MERGES",
        "BACKUP TABLE numbers TO File('{folder}/backup')",
        "SELECT * FROM file('/etc/hostname', 'LineAsString')",
        "SELECT * FROM fileCluster('c', '/etc/hostname', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString')",
        "SELECT * FROM s3('http://127.0.0.1:{port}/b/k', 'LineAsString')",
        "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
        "SELECT * FROM executable('id', 'TSV', 'x String')",
        "SELECT * FROM sqlite('/etc/hostname', 't')",
        "SELECT * FROM mysql('127.0.0.1:{port}', 'd', 't', 'u', 'p')",
        "SELECT * FROM postgresql('127.0.0.1:{port}', 'd', 't', 'u', 'p')",
        "SELECT * FROM mongodb('127.0.0.1:{port}', 'd', 't', 'u', 'p', 'x UInt8')",
        "SELECT * FROM redis('127.0.0.1:{port}', 'k', 'k String')",
        "SELECT * FROM Python(x)",
        "SELECT * FROM (SELECT * FROM file('/etc/hostname', 'LineAsString'))",
        "WITH t AS (SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString')) SELECT * FROM t",
        "DESCRIBE TABLE file('/etc/hostname', 'LineAsString')",
        "DESCRIBE TABLE url('http://127.0.0.1:{port}/')",
        "DESCRIBE TABLE remote('127.0.0.1:{port}', 'd', 't')",
        "DESCRIBE TABLE mysql('127.0.0.1:{port}', 'd', 't', 'u', 'p')",
        "DESCRIBE TABLE `sqlite`('/etc/hostname', 't')",
        "DESCRIBE TABLE deltaLake('http://127.0.0.1:{port}/bucket/key')",
        "SELECT file('/etc/hostname')",
        "SELECT name FROM numbers WHERE name = `fi\\x6ce`('/etc/hostname', 'x')",
        "SELECT hasColumnInTable('127.0.0.1:{port}', 'system', 'one', 'dummy')",
        "EXPLAIN PLAN SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString')",
    ],
)
def test_the_reader_cannot_write_kill_or_reach_outside(guarded: Guarded, reader: Client, statement: str) -> None:
    error_code = code_of(reader, statement.format(folder=guarded.folder, port=guarded.port))
    assert error_code not in {None, 60, 210, 209, 1000, 1001, 1002}, "it failed, but was not refused"
    assert reader.command("SELECT count() FROM numbers") == 1000
    assert {path.name for path in guarded.folder.iterdir()} == {"data", "log"}


def test_the_reader_cannot_write_a_file_by_outfile(guarded: Guarded, reader: Client) -> None:
    target = guarded.folder / "out.csv"
    assert code_of(reader, f"SELECT 1 INTO OUTFILE '{target}'") in {OUTFILE, READONLY}
    assert code_of(reader, f"SELECT 1 /**/INTO/**/OUTFILE '{target}' FORMAT CSV") in {OUTFILE, READONLY}
    assert not target.exists()


@pytest.mark.parametrize("second", ["DROP TABLE numbers", "SELECT 2", "SET readonly = 0"])
def test_a_second_statement_is_not_run(reader: Client, second: str) -> None:
    assert code_of(reader, f"SELECT 1; {second}") == SYNTAX
    assert code_of(reader, f"SELECT 1 SETTINGS readonly = 1; {second}") == SYNTAX
    assert reader.command("SELECT count() FROM numbers") == 1000


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count() FROM numbers(100000000000) WHERE NOT ignore(sipHash64(number))",
        "SELECT groupArray(repeat('x', 100000)) FROM numbers(1000000)",
        "SELECT number FROM numbers(20000000) FORMAT Null",
        "SELECT repeat('x', 1000000) FROM numbers(100000) FORMAT JSON",
        "SELECT length(arraySort(groupArray(sipHash64(number)))) FROM numbers(900000000)",
        "SELECT length(groupArray(number)) FROM numbers(45000000)",
    ],
)
def test_a_runaway_question_ends_before_it_takes_the_machine(reader: Client, statement: str) -> None:
    assert code_of(reader, statement) in LIMITS


@pytest.mark.parametrize("name", ["readonly", "max_memory_usage", "max_execution_time", "max_result_rows"])
def test_the_limits_cannot_be_changed_by_the_address(guarded: Guarded, name: str) -> None:
    given = urlencode({"user": "readonly", "password": guarded.reader_password, name: "0", "query": "SELECT 1"})
    with pytest.raises(HTTPError) as refusal:
        urlopen(f"{guarded.url}?{given}")
    with refusal.value as answer:
        assert answer.headers["X-ClickHouse-Exception-Code"] == str(READONLY)


def test_a_limit_can_be_made_tighter_for_one_request(guarded: Guarded) -> None:
    given = urlencode({"user": "readonly", "password": guarded.reader_password, "max_result_rows": "5"})
    for rows, is_served in ((5, True), (6, False)):
        url = f"{guarded.url}?{given}&query=SELECT+number+FROM+numbers({rows})"
        if is_served:
            with urlopen(url) as answer:
                assert len(answer.read().split()) == rows
        else:
            with pytest.raises(HTTPError) as refusal:
                urlopen(url)
            refusal.value.close()


@pytest.mark.parametrize("setting", ["max_threads=1", "max_execution_time=60", "date_time_output_format=iso"])
def test_default_settings_of_clients_are_accepted(guarded: Guarded, setting: str) -> None:
    name, _, value = setting.partition("=")
    query = f"SELECT value FROM system.settings WHERE name = '{name}'"
    with urlopen(f"{guarded.url}?{login_of(guarded)}&{setting}&{urlencode({'query': query})}") as answer:
        assert answer.read().decode().strip() == {"60": "30"}.get(value, value)


def login_of(endpoint: Guarded) -> str:
    return urlencode({"user": "readonly", "password": endpoint.reader_password})


def take_every_place(endpoint: Guarded) -> list[socket.socket]:
    """Ask for as many long answers as the reader may have at once, and read none of them."""
    long = f"{login_of(endpoint)}&{urlencode({'query': LONG_ANSWER})}"
    standing = [socket.create_connection((HOST, endpoint.port)) for _ in range(READONLY_AT_ONCE)]
    for connection in standing:
        connection.sendall(f"GET /?{long} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    for connection in standing:
        assert connection.recv(12) == b"HTTP/1.1 200", "it has no place to lose"
    return standing


def test_statements_of_the_reader_run_at_once_up_to_a_limit(tmp_path: Path) -> None:
    with running_endpoint(Guarded(find_free_port(), tmp_path, send_s=600.0)) as endpoint:
        standing = take_every_place(endpoint)
        with pytest.raises(HTTPError) as refusal:
            urlopen(f"{endpoint.url}?{login_of(endpoint)}&query=SELECT+1")
        with refusal.value as refused:
            assert refused.headers["X-ClickHouse-Exception-Code"] == "202"
        with endpoint.client() as owner:
            assert owner.command("SELECT 1") == 1
        for connection in standing:
            connection.close()
        wait_for_a_place(f"{endpoint.url}?{login_of(endpoint)}&query=SELECT+1")


def test_stalled_readers_lose_their_places(tmp_path: Path) -> None:
    with running_endpoint(Guarded(find_free_port(), tmp_path, send_s=1.0)) as endpoint:
        standing = take_every_place(endpoint)
        for _ in standing:
            wait_for_a_place(f"{endpoint.url}?{login_of(endpoint)}&query=SELECT+1")
        for connection in standing:
            with connection, connection.makefile("rb") as taken:
                assert not taken.read().endswith(b"0\r\n\r\n"), "a part was given out as the whole"


def wait_for_a_place(url: str) -> None:
    """Ask until there is one; what else the endpoint may answer is an error."""
    deadline = time.monotonic() + 120
    while True:
        try:
            with urlopen(url) as answer:
                answer.read()
                return
        except HTTPError as error:
            with error:
                if error.headers["X-ClickHouse-Exception-Code"] != "202" or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_the_reader_cannot_fill_the_memory_with_its_requests(guarded: Guarded, encoding: str | None) -> None:
    given = urlencode({"user": "readonly", "password": guarded.reader_password})
    text = b"SELECT 1 --" + b"x" * 30_000_000
    headers = {} if encoding is None else {"Content-Encoding": encoding}
    http_request = Request(f"{guarded.url}?{given}", text if encoding is None else gzip.compress(text), headers)
    with pytest.raises(HTTPError) as refusal:
        urlopen(http_request)
    with refusal.value as answer:
        assert answer.headers["X-ClickHouse-Exception-Code"] in {"307", "354"}
    with guarded.client() as owner:
        assert owner.command("SELECT 1") == 1


def test_nothing_is_unpacked_for_a_stranger(guarded: Guarded) -> None:
    http_request = Request(guarded.url, b"no gzip at all", {"Content-Encoding": "gzip"})
    with pytest.raises(HTTPError) as refusal:
        urlopen(http_request)
    with refusal.value as answer:
        assert answer.headers["X-ClickHouse-Exception-Code"] == "516", "and not that it cannot be unpacked"
