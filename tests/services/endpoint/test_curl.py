"""The endpoint as `curl` sees it: plain HTTP, byte for byte."""

import gzip
import json
import subprocess
from dataclasses import dataclass

import pytest

from tests.services.endpoint.guarded_endpoint import Guarded, guarded

__all__ = ["guarded"]
pytestmark = pytest.mark.services

LARGE = 3_000_000
"""Rows of an answer that is longer than what is built first."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    exit: int
    """Status of curl itself: 18 and 56 where the answer broke off."""


def curl(
    guarded: Guarded, *arguments: str, query: str = "", body: bytes | None = None, user: str = "default"
) -> Answer:
    password = guarded.password if user == "default" else guarded.reader_password
    command = ["curl", "-sS", "-D", "-", "-u", f"{user}:{password}", *arguments]
    if body is not None:
        command += ["--data-binary", "@-"]
    result = subprocess.run([*command, f"{guarded.url}?{query}"], input=body, capture_output=True, timeout=120)
    head, _, content = result.stdout.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, content = content.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split()[1]), headers, content, result.returncode)


def test_rows_are_inserted_and_counted_in_the_summary(guarded: Guarded) -> None:
    curl(guarded, body=b"CREATE TABLE curled (id UInt32, name String) ENGINE = MergeTree ORDER BY id")
    insert = "query=INSERT%20INTO%20curled%20FORMAT%20JSONEachRow"
    answer = curl(guarded, query=insert, body=b'{"id":1,"name":"a;b"}\n{"id":2,"name":"c"}\n')
    assert answer.status == 200
    assert json.loads(answer.headers["x-clickhouse-summary"])["written_rows"] == "2"
    packed = b"".join(gzip.compress(b'{"id":%d,"name":"z"}\n' % number) for number in range(3, 103))
    curl(guarded, "-H", "Content-Encoding: gzip", query=insert, body=packed)
    assert curl(guarded, body=b"SELECT count(), sum(id) FROM curled").body == b"102\t5253\n"


@pytest.mark.parametrize(
    "statement",
    ["DESCRIBE TABLE numbers", "SHOW TABLES", "EXISTS TABLE numbers", "EXPLAIN SELECT 1", "SHOW CREATE TABLE numbers",
     "(SELECT 1) UNION ALL SELECT 2", "WITH 1 AS one SELECT one", "FROM numbers SELECT id",
     "SHOW SETTINGS LIKE 'max_t%'", "SELECT format('{} of {}', 'one', name) FROM numbers LIMIT 1"],
)  # fmt: skip
def test_every_statement_that_reads_is_answered(guarded: Guarded, statement: str) -> None:
    for user in ("default", "readonly"):
        answer = curl(guarded, body=statement.encode(), user=user)
        assert (answer.status, bool(answer.body)) == (200, True), answer.body


def test_a_parameter_is_a_value_and_never_a_part_of_the_statement(guarded: Guarded) -> None:
    answer = curl(guarded, query="param_text=%27%3B%20DROP%20TABLE%20numbers", body=b"SELECT {text:String}")
    assert answer.body == b"\\'; DROP TABLE numbers\n"


def test_an_error_has_its_status_code_and_text(guarded: Guarded) -> None:
    for statement, status, code in (
        (b"SELECT * FROM nowhere", 404, "60"),
        (b"SELEC 1", 400, "62"),
        (b"INSERT INTO system.one FORMAT CSV\n1", 501, "48"),
    ):
        answer = curl(guarded, body=statement)
        assert (answer.status, answer.headers["x-clickhouse-exception-code"]) == (status, code)
        assert answer.body.startswith(f"Code: {code}. DB::Exception".encode())


@pytest.mark.parametrize(
    ("query", "code"),
    [("decompress=1", "115"), ("query_id=%00", "36"), ("query_id=a%0AX-Injected:+1", "36"),
     ("default_format=Nope", "73"), ("max_threads=", "32"), ("readonly=x", "27"), ("allow_ddl=x", "467"),
     ("session_timeout=9", "115"), ("nosuch=1", "115"), ("a%20b=1", "62"), ("%FF=1", "62"), ("profile=x", "180")],
)  # fmt: skip
def test_a_malformed_parameter_is_the_clients_mistake(guarded: Guarded, query: str, code: str) -> None:
    answer = curl(guarded, query=query, body=b"SELECT 1")
    assert (answer.status in {400, 404}, answer.headers.get("x-clickhouse-exception-code")) == (True, code), answer.body
    assert "x-injected" not in answer.headers


@pytest.mark.parametrize(
    "statement",
    [b"", b"SELECT 1 FORMAT \xff", b"SELECT 1 FORMAT `\xff`", b"INSERT INTO numbers FORMAT `\xff`\n1",
     b"INSERT INTO `\xff` FORMAT CSV\n1", b"SELECT * FROM \xff", b"SELECT " + b"(" * 5000],
)  # fmt: skip
def test_a_malformed_statement_is_the_clients_mistake(guarded: Guarded, statement: bytes) -> None:
    answer = curl(guarded, body=statement)
    assert answer.status in {400, 404}, answer.body
    assert int(answer.headers["x-clickhouse-exception-code"]) != 1002


def test_text_is_bytes_and_need_not_be_utf8(guarded: Guarded) -> None:
    assert curl(guarded, body=b"SELECT '\xff\xfe'").body == b"\xff\xfe\n"


def test_a_query_id_comes_back_as_it_was_sent(guarded: Guarded) -> None:
    answer = curl(guarded, query="query_id=m%C3%B6we-%D9%A3", body=b"SELECT 1")
    assert (answer.status, answer.headers["x-clickhouse-query-id"]) == (200, "möwe-٣")


@pytest.mark.parametrize(
    "header",
    ["Origin: null", "Origin: https://elsewhere.example", "Origin: http://127.0.0.1.elsewhere.example", "Origin: http://[",
     "Origin: http://127.0.0.1:3000", "Origin: http://localhost", "Sec-Fetch-Site: same-site",
     "Sec-Fetch-Site: cross-site", "Host: elsewhere.example"],
)  # fmt: skip
def test_a_foreign_page_cannot_ask_through_a_local_browser(guarded: Guarded, header: str) -> None:
    answer = curl(guarded, "-H", header, body=b"CREATE TABLE planted (x UInt8) ENGINE = Memory")
    assert (answer.status, answer.headers["x-clickhouse-exception-code"]) == (403, "516")
    assert curl(guarded, body=b"EXISTS TABLE planted").body == b"0\n"


def test_a_page_of_its_own_address_may_ask(guarded: Guarded) -> None:
    for header in (f"Origin: http://127.0.0.1:{guarded.port}", "Sec-Fetch-Site: same-origin"):
        assert curl(guarded, "-H", header, body=b"SELECT 1").body == b"1\n"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_an_answer_comes_in_the_encoding_that_curl_asks_for(guarded: Guarded, encoding: str) -> None:
    for rows in (1000, LARGE):
        answer = curl(
            guarded, "-H", f"Accept-Encoding: {encoding}", "--compressed", query="enable_http_compression=1",
            body=b"SELECT number FROM numbers(%d)" % rows,
        )  # fmt: skip
        if answer.exit == 61 and encoding in {"br", "zstd"}:
            assert b"SELECT" not in answer.body  # this curl was built without it
            continue
        assert answer.exit == 0
        lines = answer.body.split()
        assert (len(lines), lines[-1]) == (rows, b"%d" % (rows - 1))


def test_a_large_answer_is_sent_while_it_is_made(guarded: Guarded) -> None:
    answer = curl(guarded, body=b"SELECT number FROM numbers(%d)" % LARGE)
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.body.count(b"\n") == LARGE
    whole = curl(guarded, query="wait_end_of_query=1", body=b"SELECT number FROM numbers(%d)" % LARGE)
    assert (whole.body, "transfer-encoding" in whole.headers) == (answer.body, False)


def test_a_reader_that_disconnects_frees_its_session(guarded: Guarded) -> None:
    statement = b"SELECT number FROM numbers(1000000000)"
    for _ in range(6):
        curl(guarded, "--max-time", "0.5", query="session_id=left", body=statement)
    for _ in range(50):
        answer = curl(guarded, query="session_id=left", body=b"SELECT 1")
        if answer.body == b"1\n":
            return
    raise AssertionError(answer.body)


def test_a_failure_in_the_middle_breaks_the_answer_off(guarded: Guarded) -> None:
    statement = b"SELECT throwIf(number = 2900000), number FROM numbers(%d)" % LARGE
    answer = curl(guarded, body=statement)
    assert answer.status == 200
    assert answer.exit in {18, 56}
    assert b"Code: 395. DB::Exception" in answer.body[-2000:]
    assert curl(guarded, query="wait_end_of_query=1", body=statement).headers["x-clickhouse-exception-code"] == "395"
