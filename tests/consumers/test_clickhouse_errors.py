"""What ClickHouse and its client say is passed on without what hides it."""

from rollbus.consumers.clickhouse.client_clickhouse import _said


def test_a_server_that_cannot_be_reached_is_said_in_words() -> None:
    layers = (
        "HTTPConnectionPool(…): Max retries exceeded (Caused by …: Failed to establish a new connection: [Errno 111])"
    )
    assert _said(OSError(layers)).startswith("it cannot be reached; does it run (`rollbus status`)")


def test_a_mistake_in_a_statement_is_shown_without_all_that_could_have_stood_there() -> None:
    answer = (
        "Code: 62. DB::Exception: Syntax error: failed at position 1 (SELEC): SELEC 1. Maybe you meant: SELECT. "
        "Expected one of: Query, EXPLAIN, SHOW [FULL] TABLES [LIMIT expr], EXECUTE AS. (SYNTAX_ERROR) (version 26.9)"
    )
    said = _said(ValueError(answer))
    assert "Maybe you meant: SELECT." in said
    assert "Expected one of" not in said
    assert said.endswith("(SYNTAX_ERROR) (version 26.9)")
