"""One HTTP request → one statement with its parameters, settings and session."""

import pytest

from rollbus.local.clickhouse.errors import ClickHouseError
from rollbus.local.clickhouse.request import Request, find_lowered_limits, parse_request


def parse(
    *,
    method: str = "POST",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    login: tuple[str, str] | None = None,
    **parameters: str,
) -> Request:
    return parse_request(method=method, parameters=parameters, headers=headers or {}, body=body, login=login)


def test_the_query_parameter_stands_before_the_body() -> None:
    request = parse(query="INSERT INTO t FORMAT CSV", body=b"1\n")
    assert request.sql == b"INSERT INTO t FORMAT CSV\n1\n"
    assert parse(body=b"SELECT 1").sql == b"SELECT 1"


def test_what_the_protocol_does_not_name_is_a_setting() -> None:
    request = parse(
        body=b"SELECT 1",
        database="d",
        session_id="s",
        param_x="1",
        wait_end_of_query="1",
        enable_http_compression="1",
        max_threads="2",
        readonly="1",
    )
    assert request.settings == {"max_threads": "2", "readonly": "1"}
    assert request.parameters == {"x": "1"}
    assert (request.database, request.session_id, request.encodes_answer) == ("d", "s", True)


def test_a_form_carries_long_values() -> None:
    boundary = "xyz"
    parts = {"query": "SELECT {text:String}", "param_text": "möwe\r\n--line"}
    body = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    )
    request = parse(
        headers={"content-type": f"multipart/form-data; boundary={boundary}"},
        body=f"{body}--{boundary}--\r\n".encode(),
        max_threads="1",
    )
    assert request.sql == b"SELECT {text:String}"
    assert request.parameters == {"text": "möwe\r\n--line"}
    assert request.settings == {"max_threads": "1"}


def test_a_file_in_a_form_is_refused() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="t"; filename="t.csv"\r\n\r\n1\r\n--b--\r\n'
    with pytest.raises(ClickHouseError, match="External tables"):
        parse(headers={"content-type": "multipart/form-data; boundary=b"}, body=body)


def test_only_post_may_write() -> None:
    for method in ("GET", "HEAD"):
        assert not parse(method=method, query="SELECT 1").writes_allowed
    assert parse(query="SELECT 1").writes_allowed


def test_the_user_comes_from_the_login_else_a_header_else_a_parameter() -> None:
    named = {"x-clickhouse-user": "header"}
    assert parse(body=b"SELECT 1", login=("login", "pw"), headers=named).user == "login"
    assert parse(body=b"SELECT 1", headers=named, user="parameter").user == "header"
    assert parse(body=b"SELECT 1", user="parameter").user == "parameter"
    assert parse(body=b"SELECT 1").user == "default"


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({}, 62),
        ({"query": "SELECT 1", "query_id": "a\nX-Injected: 1"}, 36),
        ({"query": "SELECT 1", "query_id": "a\0"}, 36),
    ],
)
def test_what_is_not_served_says_so(parameters: dict[str, str], code: int) -> None:
    with pytest.raises(ClickHouseError) as caught:
        parse(**parameters)  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize("value", ["9" * 5000, "٣", "-1", "0", "", "1e3", "500000001"])
def test_what_is_no_tighter_limit_is_left_to_the_engine_to_refuse(value: str) -> None:
    assert find_lowered_limits(parse(body=b"SELECT 1", max_memory_usage=value)) == {}
    assert find_lowered_limits(parse(body=b"SELECT 1", max_memory_usage="1000")) == {"max_memory_usage": "1000"}
