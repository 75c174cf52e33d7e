"""One HTTP request of ClickHouse's protocol → one `EngineRequest`: statement, parameters, settings and session. Pure.

Every URL parameter that the protocol does not name is a setting, as on a server.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import policy
from email.parser import BytesParser

from rollbus.local.clickhouse.compression import decompress
from rollbus.local.clickhouse.errors import Code, refusal
from rollbus.local.clickhouse.reader_role import READONLY_LIMITS, READONLY_SETTINGS, READONLY_USER

DEFAULT_FORMAT = "TabSeparated"

READONLY_BYTES = 1_048_576
"""Of a request's body, plain: four times the longest statement, with room for its parameters."""
OWNER_BYTES = 256 * 1024 * 1024
"""Of the owner's body, as sent and plain: the sink's inserts take a tenth."""
READONLY_SEND_S = 60.0
"""Time to read a long answer: a reader that stops would keep a place that others wait for."""

_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_PROTOCOL = frozenset(
    {"query", "query_id", "database", "default_format", "session_id", "user", "password", "quota_key", "role",
     "compress", "wait_end_of_query", "client_protocol_version"}
)  # fmt: skip
_TRANSPORT_SETTINGS = frozenset(
    {"enable_http_compression", "http_zlib_compression_level", "send_progress_in_http_headers",
     "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close"}
)  # fmt: skip
"""Settings about how an answer is sent: they are read here and not passed to the engine."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What one HTTP request asks of the engine."""

    sql: bytes
    """Statement and, for an insert, its data."""
    writes_allowed: bool
    """False for GET and HEAD, which must not change anything."""
    user: str = "default"
    database: str | None = None
    query_id: str | None = None
    default_format: str = DEFAULT_FORMAT
    session_id: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Values of {name:Type}, in the escaped form in which clients send them."""
    settings: Mapping[str, str] = field(default_factory=dict)
    encodes_answer: bool = False
    """Whether the client reads an answer in an encoding of its Accept-Encoding."""
    answers_in_blocks: bool = False
    """Whether the client reads an answer only in ClickHouse's own compressed blocks, as JDBC does."""
    wait_for_end: bool = False
    """Whether the client wants no byte before the statement has succeeded."""
    names_revision: bool = False
    """Whether the client states in which protocol revision it reads Native blocks."""


def parse_request(
    *,
    method: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    login: tuple[str, str] | None,
) -> EngineRequest:
    """Read a request; `login` comes from its Authorization header. Header names are lower case."""
    user, _ = find_credentials(parameters, headers, login)
    plain = decompress(body, headers.get("content-encoding"), READONLY_BYTES if user == READONLY_USER else OWNER_BYTES)
    values = dict(parameters)
    content_type = headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        values |= _form_fields(content_type, plain)
        plain = b""
    settings = {name: value for name, value in values.items() if not _is_protocol(name)}
    return EngineRequest(
        sql=_statement(values.get("query", ""), plain),
        writes_allowed=method == "POST",
        user=user,
        database=headers.get("x-clickhouse-database") or values.get("database") or None,
        query_id=_query_id(values.get("query_id") or ""),
        default_format=headers.get("x-clickhouse-format") or values.get("default_format") or DEFAULT_FORMAT,
        session_id=values.get("session_id") or None,
        parameters={name[len("param_") :]: value for name, value in values.items() if name.startswith("param_")},
        settings=settings,
        encodes_answer=values.get("enable_http_compression", "0") == "1",
        answers_in_blocks=values.get("compress", "0") in {"1", "true"},
        wait_for_end=values.get("wait_end_of_query", "0") == "1",
        names_revision="client_protocol_version" in values,
    )


def find_credentials(
    parameters: Mapping[str, str], headers: Mapping[str, str], login: tuple[str, str] | None
) -> tuple[str, str]:
    """Return user and password from the head of a request, before its body is read."""
    return login or (
        headers.get("x-clickhouse-user") or parameters.get("user", "default"),
        headers.get("x-clickhouse-key") or parameters.get("password", ""),
    )


def find_reader_settings(request: EngineRequest) -> dict[str, str]:
    """Return those settings of a request that the read-only user may send, held to their bounds."""
    bounds = {name: int(limit) for name, limit in READONLY_LIMITS.items()} | dict(READONLY_SETTINGS)
    settings = {}
    for name, value in request.settings.items():
        if name not in bounds:
            continue
        bound = bounds[name]
        if bound is None:
            settings[name] = value
        elif _NUMBER.match(value) and (int(value) > 0 or name in READONLY_SETTINGS):
            settings[name] = str(min(int(value), bound))
    return settings


def _is_protocol(name: str) -> bool:
    return name in _PROTOCOL or name in _TRANSPORT_SETTINGS or name.startswith("param_")


def _statement(query: str, body: bytes) -> bytes:
    sql = query.encode() + b"\n" + body if query and body else query.encode() or body
    if not sql.strip():
        raise refusal(Code.SYNTAX_ERROR, "Empty query")
    return sql


def _query_id(text: str) -> str | None:
    if not text.isprintable():  # it travels back in a header
        raise refusal(Code.BAD_ARGUMENTS, f"query_id {text[:100]!r} holds what cannot be printed")
    return text or None


def _form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """Return the text fields of a form; a file in it would be an external table."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = BytesParser(policy=policy.HTTP).parsebytes(head + body)
    fields = {}
    for part in message.iter_parts():
        if part.get_filename() is not None:
            raise refusal(Code.NOT_IMPLEMENTED, "External tables are not served; use a temporary table")
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(payload, bytes):
            fields[name] = payload.decode()
    return fields
