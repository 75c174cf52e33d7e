"""One HTTP request of ClickHouse's protocol → one `Request`: the statement, its parameters, settings and session. Pure.

Every URL parameter that the protocol does not name is a setting, as on a server.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import policy
from email.parser import BytesParser

from rollbus.local.clickhouse_compression import decompress
from rollbus.local.clickhouse_errors import (
    BAD_ARGUMENTS,
    CANNOT_PARSE_INPUT_ASSERTION_FAILED,
    INVALID_SESSION_TIMEOUT,
    NOT_IMPLEMENTED,
    SYNTAX_ERROR,
    refusal,
)

DEFAULT_FORMAT = "TabSeparated"
DEFAULT_SESSION_TIMEOUT_S = 60.0
MAX_SESSION_TIMEOUT_S = 3600.0
"""As a server's default_session_timeout and max_session_timeout."""

READONLY_USER = "readonly"
READONLY_AT_ONCE = 4
"""Statements of the read-only user that run at a time."""
READONLY_MEMORY_BYTES = 2_000_000_000
"""Of all of them together. The engine knows one user only, so each has its part; every saved question over a million
trajectories takes less than that."""
READONLY_LIMITS = {
    "max_execution_time": "30",
    "max_result_rows": "1000000",
    "max_rows_to_read": "1000000000",
    "max_result_bytes": "1000000000",
    "max_memory_usage": str(READONLY_MEMORY_BYTES // READONLY_AT_ONCE),
    "max_temporary_data_on_disk_size_for_query": "1000000000",
}
"""Of one statement: a question gone wrong ends with an error before it takes the machine."""
READONLY_BYTES = 1_048_576
"""Of a request's body, plain: four times the longest statement, with room for its parameters."""
READONLY_SEND_S = 60.0
"""In which a long answer must have been taken: who stands still would keep a place that others wait for."""

_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_PROTOCOL = frozenset(
    {"query", "query_id", "database", "default_format", "session_id", "session_timeout", "session_check", "user",
     "password", "quota_key", "stacktrace", "role", "compress", "decompress", "buffer_size", "wait_end_of_query",
     "client_protocol_version"}
)  # fmt: skip
_TRANSPORT_SETTINGS = frozenset(
    {"enable_http_compression", "http_zlib_compression_level", "send_progress_in_http_headers",
     "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close"}
)  # fmt: skip
"""Settings about how an answer travels: read here, of no use to the engine."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one HTTP request asks of the engine."""

    sql: bytes
    """Statement and, for an insert, its data."""
    writes_allowed: bool
    """False for GET, which must not change anything."""
    user: str = "default"
    password: str = ""
    database: str | None = None
    query_id: str | None = None
    default_format: str = DEFAULT_FORMAT
    session_id: str | None = None
    session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S
    session_must_exist: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values of {name:Type}, in the escaped form in which clients send them."""
    settings: Mapping[str, str] = field(default_factory=dict)
    compressed_answer: bool = False
    wait_for_end: bool = False
    """Whether the client wants no byte before the statement has succeeded."""
    revision: int = 0
    """Protocol revision in which the client reads Native blocks; 0 if it names none."""


def parse_request(
    *,
    method: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    login: tuple[str, str] | None,
) -> Request:
    """Read a request; `login` is what its Authorization header said. Header names are lower case."""
    for name in ("compress", "decompress"):
        if parameters.get(name, "0") not in {"0", ""}:
            raise refusal(NOT_IMPLEMENTED, f"{name}=1 (native block framing) is not served; use Content-Encoding")
    user, password = credentials(parameters, headers, login)
    plain = decompress(body, headers.get("content-encoding"), READONLY_BYTES if user == READONLY_USER else None)
    values = dict(parameters)
    content_type = headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        values |= _form_fields(content_type, plain)
        plain = b""
    settings = {name: value for name, value in values.items() if not _is_protocol(name)}
    return Request(
        sql=_statement(values.get("query", ""), plain),
        writes_allowed=method != "GET",
        user=user,
        password=password,
        database=headers.get("x-clickhouse-database") or values.get("database") or None,
        query_id=_query_id(values.get("query_id") or ""),
        default_format=headers.get("x-clickhouse-format") or values.get("default_format") or DEFAULT_FORMAT,
        session_id=values.get("session_id") or None,
        session_timeout_s=_session_timeout(values.get("session_timeout")),
        session_must_exist=values.get("session_check", "0") == "1",
        parameters={name[len("param_") :]: value for name, value in values.items() if name.startswith("param_")},
        settings=settings,
        compressed_answer=values.get("enable_http_compression", "0") == "1",
        wait_for_end=values.get("wait_end_of_query", "0") == "1",
        revision=_revision(values.get("client_protocol_version") or "0"),
    )


def credentials(
    parameters: Mapping[str, str], headers: Mapping[str, str], login: tuple[str, str] | None
) -> tuple[str, str]:
    """User and password, which the head of a request says: before its body is read, it is known whose it is."""
    return login or (
        headers.get("x-clickhouse-user") or parameters.get("user", "default"),
        headers.get("x-clickhouse-key") or parameters.get("password", ""),
    )


def lowered_limits(request: Request) -> dict[str, str]:
    """Those of the read-only user's limits that the request itself makes tighter; looser ones stay settings."""
    return {
        name: value
        for name, value in request.settings.items()
        if name in READONLY_LIMITS and _NUMBER.match(value) and 0 < int(value) <= int(READONLY_LIMITS[name])
    }


def _is_protocol(name: str) -> bool:
    return name in _PROTOCOL or name in _TRANSPORT_SETTINGS or name.startswith("param_")


def _statement(query: str, body: bytes) -> bytes:
    sql = query.encode() + b"\n" + body if query and body else query.encode() or body
    if not sql.strip():
        raise refusal(SYNTAX_ERROR, "Empty query")
    return sql


def _session_timeout(text: str | None) -> float:
    if text is None:
        return DEFAULT_SESSION_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_SESSION_TIMEOUT_S:
        raise refusal(
            INVALID_SESSION_TIMEOUT, f"session_timeout {text!r} is not between 0 and {MAX_SESSION_TIMEOUT_S:.0f} s"
        )
    return seconds


def _query_id(text: str) -> str | None:
    if not text.isprintable():  # it travels back in a header
        raise refusal(BAD_ARGUMENTS, f"query_id {text[:100]!r} holds what cannot be printed")
    return text or None


def _revision(text: str) -> int:
    if not _NUMBER.match(text):
        raise refusal(CANNOT_PARSE_INPUT_ASSERTION_FAILED, f"client_protocol_version {text[:100]!r} is not a number")
    return int(text)


def _form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The text fields of a form; a file in it would be an external table."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = BytesParser(policy=policy.HTTP).parsebytes(head + body)
    fields = {}
    for part in message.iter_parts():
        if part.get_filename() is not None:
            raise refusal(NOT_IMPLEMENTED, "External tables (files in a form) are not served; use a temporary table")
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(payload, bytes):
            fields[name] = payload.decode()
    return fields
