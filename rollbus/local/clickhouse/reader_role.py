"""The read-only user: its limits, the same on the local endpoint and on a ClickHouse server, and there its role."""

from collections.abc import Iterator, Mapping

READONLY_USER = "readonly"
READONLY_AT_ONCE = 4
"""Statements of the read-only user that run at a time."""
READONLY_MEMORY_BYTES = 2_000_000_000
"""Of all of them together. The engine has one user only, so each statement has its share; every saved question over a
million trajectories takes less."""
READONLY_LIMITS = {
    "max_execution_time": "30",
    "max_result_rows": "1000000",
    "max_rows_to_read": "1000000000",
    "max_result_bytes": "1000000000",
    "max_memory_usage": str(READONLY_MEMORY_BYTES // READONLY_AT_ONCE),
    "max_temporary_data_on_disk_size_for_query": "1000000000",
}
"""Of one statement: a wrong question ends with an error before it uses up the machine."""
READONLY_SETTINGS: Mapping[str, int | None] = {
    "max_threads": 64,
    "max_block_size": 65_536,
    "connect_timeout": 300,
    "send_timeout": 300,
    "receive_timeout": 300,
    "http_send_timeout": 300,
    "http_receive_timeout": 300,
    "output_format_json_quote_64bit_integers": None,
    "output_format_json_quote_denormals": None,
    "output_format_json_named_tuples_as_objects": None,
    "date_time_output_format": None,
    "date_time_input_format": None,
    "session_timezone": None,
    "join_use_nulls": None,
    "extremes": None,
    "log_comment": None,
}
"""Settings that clients send of themselves, with the largest value of a number: they change how an answer looks, or
take less. What is not listed stays refused."""
READONLY_GRANT = "GRANT SELECT ON {tables}"
"""All that it may do: none on sources (files, URLs, other servers), dictionaries, settings or users."""
ROLE = "rollbus_reader"
NO_GRANT = (
    "The function file() asks for no grant: it reads what lies in the server's user_files_path. Keep nothing there "
    "that readers may not see."
)
PASSWORD_HASH = "<SHA-256 of the password, as hex>"


READONLY_PROFILE = READONLY_LIMITS | {
    "max_concurrent_queries_for_user": str(READONLY_AT_ONCE),
    "readonly": "1",
    "allow_ddl": "0",
}
"""On a server, where other users have other limits."""


def readonly_grants(database: str) -> list[str]:
    """Return what it may do: read the tables, and the plain views of them."""
    return [READONLY_GRANT.format(tables=f"`{name}`.*") for name in (database, f"{database}_views")]


def make_role_statements(database: str, user: str = READONLY_USER) -> Iterator[str]:
    """Yield the statements by which an administrator makes the user on a server, for one database."""
    yield f"CREATE ROLE IF NOT EXISTS {ROLE}"
    fixed = [f"{name} = {value}" for name, value in READONLY_PROFILE.items() if name not in READONLY_LIMITS]
    limits = [  # 0 would be no limit
        f"{name} = {value} MIN 1 MAX {value} CHANGEABLE_IN_READONLY" for name, value in READONLY_LIMITS.items()
    ]
    open_to_clients = [
        f"{name}{'' if largest is None else f' MAX {largest}'} CHANGEABLE_IN_READONLY"
        for name, largest in READONLY_SETTINGS.items()
    ]
    settings = ", ".join([*fixed, *limits, *open_to_clients])
    yield f"CREATE SETTINGS PROFILE IF NOT EXISTS {ROLE} SETTINGS {settings} TO {ROLE}"
    for grant in readonly_grants(database):
        yield f"{grant} TO {ROLE}"
    yield f"CREATE USER IF NOT EXISTS `{user}` IDENTIFIED WITH sha256_hash BY '{PASSWORD_HASH}'"
    yield f"GRANT {ROLE} TO `{user}`"
    yield f"SET DEFAULT ROLE {ROLE} TO `{user}`"
