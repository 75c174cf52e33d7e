"""What ClickHouse and its client say is passed on without what hides it."""

import pytest
from pydantic import ValidationError

from rollbus.consumers.clickhouse.store.client import _short_message
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings


@pytest.mark.parametrize("cause", ["…: Failed to establish a new connection: [Errno 111]", "NameResolutionError(…)"])
def test_an_unreachable_server_is_reported_in_words(cause: str) -> None:
    layers = f"HTTPConnectionPool(…): Max retries exceeded (Caused by {cause})"
    assert _short_message(OSError(layers)).startswith("it cannot be reached; does it run (`rollbus status`)")


def test_a_syntax_error_is_shown_without_the_list_of_expected_words() -> None:
    answer = (
        "Code: 62. DB::Exception: Syntax error: failed at position 1 (SELEC): SELEC 1. Maybe you meant: SELECT. "
        "Expected one of: Query, EXPLAIN, SHOW [FULL] TABLES [LIMIT expr], EXECUTE AS. (SYNTAX_ERROR) (version 26.9)"
    )
    message = _short_message(ValueError(answer))
    assert "Maybe you meant: SELECT." in message
    assert "Expected one of" not in message
    assert message.endswith("(SYNTAX_ERROR) (version 26.9)")


@pytest.mark.parametrize("scope", ["`nope`. In scope ", "`nope`: In scope ", "`nope`: in scope "])
def test_a_mistake_in_a_filter_is_shown_without_the_statement_around_it(scope: str) -> None:
    answer = (
        "Received ClickHouse exception, code: 47, server response: Code: 47. DB::Exception: Unknown identifier "
        f"{scope}SELECT a, (SELECT 1) FROM (SELECT 2) WHERE nope. {'x' * 3000} (UNKNOWN_IDENTIFIER) (version 26.9.2.1) "
        "(for url http://127.0.0.1:8123)"
    )
    expected = "Code: 47. DB::Exception: Unknown identifier `nope` (UNKNOWN_IDENTIFIER) (version 26.9.2.1)"
    assert _short_message(ValueError(answer)) == expected


@pytest.mark.parametrize("host", ["http://localhost", "localhost:8123", "", "a b", "10.0.0.1/x"])
def test_an_address_as_a_host_is_refused_with_the_settings_for_its_parts(host: str) -> None:
    with pytest.raises(ValidationError, match="`port` and `secure`"):
        ClickHouseSettings(host=host)


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "[::1]", "clickhouse-0.db_x.internal"])
def test_a_host_alone_passes(host: str) -> None:
    assert ClickHouseSettings(host=host).host == host
