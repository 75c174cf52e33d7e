"""One HTTP request → one statement with its parameters, settings and session."""

import pytest

from rollbus.local.clickhouse.errors import ClickHouseError
from rollbus.local.clickhouse.request import EngineRequest, find_reader_settings, parse_request


def parse(
    *,
    method: str = "POST",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    login: tuple[str, str] | None = None,
    **parameters: str,
) -> EngineRequest:
    return parse_request(method=method, parameters=parameters, headers=headers or {}, body=body, login=login)


def test_an_unknown_request_parameter_is_a_setting() -> None:
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


def test_a_file_in_a_form_is_refused() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="t"; filename="t.csv"\r\n\r\n1\r\n--b--\r\n'
    with pytest.raises(ClickHouseError, match="External tables"):
        parse(headers={"content-type": "multipart/form-data; boundary=b"}, body=body)


def test_the_user_comes_from_the_login_else_a_header_else_a_parameter() -> None:
    named = {"x-clickhouse-user": "header"}
    assert parse(body=b"SELECT 1", login=("login", "pw"), headers=named).user == "login"
    assert parse(body=b"SELECT 1", headers=named, user="parameter").user == "header"
    assert parse(body=b"SELECT 1", user="parameter").user == "parameter"
    assert parse(body=b"SELECT 1").user == "default"


@pytest.mark.parametrize("value", ["9" * 5000, "٣", "-1", "0", "", "1e3"])
def test_an_invalid_limit_is_left_to_the_engine(value: str) -> None:
    assert find_reader_settings(parse(body=b"SELECT 1", max_memory_usage=value)) == {}


def test_default_settings_of_clients_are_accepted_within_bounds() -> None:
    request = parse(
        body=b"SELECT 1", max_memory_usage="1000", max_execution_time="60", max_threads="0", session_timezone="UTC"
    )
    assert find_reader_settings(request) == {
        "max_memory_usage": "1000",
        "max_execution_time": "30",
        "max_threads": "0",
        "session_timezone": "UTC",
    }
    assert find_reader_settings(parse(body=b"SELECT 1", max_threads="1000")) == {"max_threads": "64"}
    assert find_reader_settings(parse(body=b"SELECT 1", allow_ddl="1", format_schema="x")) == {}
