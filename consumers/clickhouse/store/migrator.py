"""Numbered folders of SQL files → the tables of a database, with a row in `schema_migrations` for each folder applied.

Every statement can run again without harm, so two runners may race. A database with migrations that this version does
not have is refused, and so is one that has lost a table: only a rebuild from the log fills it again. A lost view holds
nothing, and is made again.
"""

import hashlib
import logging
import re
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rollbus.consumers.clickhouse.store.altered_tables import require_unaltered
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.cluster import spread
from rollbus.consumers.clickhouse.store.retention import apply_retention, days_by_table
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.errors import ConfigurationError, DataLossError

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parents[1] / "migrations"
_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)")
_OBJECT = re.compile(r"(CREATE TABLE IF NOT EXISTS|CREATE OR REPLACE VIEW|ALTER TABLE) (\w+)")
RANGES = "sink_ranges"
"""The one table that is not built from records: what the sink has read."""

ORIGIN_COLUMNS = """\
kafka_topic LowCardinality(String),
    kafka_partition Int32,
    kafka_offset Int64 CODEC(Delta, ZSTD(1)),
    kafka_timestamp DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ingested_at DateTime64(3, 'UTC') DEFAULT now64(3),
    first_wins Int64 MATERIALIZED -kafka_offset"""
"""Replaces `${origin}` in a migration: the place in the log. `first_wins` keeps the first of two rows with one id."""

RECORD_TABLE = """\
CREATE TABLE IF NOT EXISTS schema_migrations
(
    id UInt32,
    name String,
    checksum String,
    duration_ms Int64,
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(applied_at)
ORDER BY id"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One folder: its files follow one another by name."""

    id: int
    name: str
    statements: tuple[str, ...]
    checksum: str
    """Of the statements without comments: a comment may change later, a statement may not."""


def migrate(
    settings: ClickHouseSettings, migrations: tuple[Migration, ...] | None = None, *, rebuilding: bool = False
) -> list[Migration]:
    """Bring the database up to date; return what was applied. Raises ConfigurationError, DataLossError, ServiceError.

    `migrations` replaces this version's in tests. `rebuilding` lets lost tables pass.
    """
    with closing(ClickHouse(settings, database="default")) as outside:
        where = f" ON CLUSTER {settings.cluster}" if settings.cluster else ""
        outside.command(f"CREATE DATABASE IF NOT EXISTS {settings.database}{where}")
    with closing(ClickHouse(settings)) as client:
        _run(client, RECORD_TABLE)
        migrations = load_migrations() if migrations is None else migrations
        applied = read_applied(client)
        pending = find_pending(migrations, applied, settings.database)
        applied_migrations = tuple(candidate for candidate in migrations if candidate.id in applied)
        lost_names = find_lost(client, applied_migrations) if applied_migrations else {}
        if lost_names and not rebuilding:
            _mend(client, migrations, lost_names)
        for migration in pending:
            _apply(client, migration, without=lost_names if rebuilding else {})
        if not rebuilding:
            require_unaltered(client, statements_of(migrations))
        # new tables have no TTL, and to look for one takes a while
        if applied_migrations or days_by_table(client.retention):
            apply_retention(client)
        return pending


def statements_of(migrations: tuple[Migration, ...] | None = None) -> list[str]:
    """Return the statements of these migrations, or of all."""
    return [statement for migration in migrations or load_migrations() for statement in migration.statements]


def find_lost(client: ClickHouse, applied: tuple[Migration, ...] | None = None) -> dict[str, bool]:
    """Return the tables and views that these migrations (or all) made and the database lacks; True for a table."""
    _, rows = client.query("SELECT name FROM system.tables WHERE database = currentDatabase()")
    present = {str(name) for (name,) in rows}
    created = [
        (match[2], match[1] == "CREATE TABLE IF NOT EXISTS")
        for migration in (load_migrations() if applied is None else applied)
        for statement in migration.statements
        if (match := _OBJECT.match(statement)) and match[1] != "ALTER TABLE"
    ]
    return {name: is_table for name, is_table in created if name not in present}


def create_as(client: ClickHouse, table: str, name: str) -> None:
    """Create a table under another name, as all migrations together make it."""
    for migration in load_migrations():
        for statement in migration.statements:
            match = _OBJECT.match(statement)
            if match and match[2] == table:
                client.command(f"{match[1]} {name}{statement[match.end() :]}")


def _mend(client: ClickHouse, migrations: tuple[Migration, ...], lost_names: Mapping[str, bool]) -> None:
    """Make lost views again; raises DataLossError for lost tables, which only the log can fill."""
    tables = sorted(name for name, is_table in lost_names.items() if is_table)
    if tables and client.cluster:
        raise DataLossError(
            f"database {client.database} has lost {', '.join(tables)}, and the tables of a cluster are not rebuilt; "
            "restore a backup, or name a new database, and reset the offsets of the sink's group to the earliest"
        )
    if tables:
        names = "" if RANGES in tables else " " + " ".join(tables)
        raise DataLossError(
            f"database {client.database} has lost {', '.join(tables)}; `rollbus sink rebuild{names}` fills from the "
            "log what is missing (`--from` an archive for what Kafka has deleted), then start the sink again"
        )
    for migration in migrations:
        for statement in migration.statements:
            match = _OBJECT.match(statement)
            if match and match[2] in lost_names:
                _run(client, statement)
    logger.warning("views made again, as they were missing: %s", ", ".join(sorted(lost_names)))


def read_applied(client: ClickHouse) -> dict[int, str]:
    """Return the checksum of each migration that the database has."""
    _, rows = client.query("SELECT id, checksum FROM schema_migrations FINAL ORDER BY id")
    return {int(number): str(checksum) for number, checksum in rows}


def find_pending(migrations: tuple[Migration, ...], applied: dict[int, str], database: str) -> list[Migration]:
    """Return the migrations to apply; raises ConfigurationError for a database that this code does not fit."""
    newest = max((migration.id for migration in migrations), default=0)
    if applied and max(applied) > newest:
        raise ConfigurationError(
            f"database {database} has migration {max(applied)}, this rollbus knows up to {newest}; "
            "install the newer rollbus, or name another database"
        )
    for migration in migrations:
        if applied.get(migration.id, migration.checksum) != migration.checksum:
            raise ConfigurationError(
                f"migration {migration.id} ({migration.name}) was applied to database {database} with other "
                "statements; what was released must not change: add a new folder"
            )
    return [migration for migration in migrations if migration.id not in applied]


def _apply(client: ClickHouse, migration: Migration, without: Collection[str]) -> None:
    start_s = time.monotonic()
    for statement in migration.statements:
        if (match := _OBJECT.match(statement)) is None or match[2] not in without:
            _run(client, statement)
    duration_ms = int((time.monotonic() - start_s) * 1000)
    row = {"id": migration.id, "name": migration.name, "checksum": migration.checksum, "duration_ms": duration_ms}
    client.insert("schema_migrations", [row])
    logger.info("migration applied id=%d name=%s duration_ms=%d", migration.id, migration.name, duration_ms)


def _run(client: ClickHouse, statement: str) -> None:
    """Run a statement on the server, or on every server of the cluster."""
    for command in spread(statement, client.cluster) if client.cluster else (statement,):
        client.command(command)


@cache
def load_migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """Return the folders in order; raises ConfigurationError if their numbers have a gap."""
    migrations = []
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ConfigurationError(f"{path.name} is not named like 0001_what_it_does")
        statements = tuple(
            statement.replace("${origin}", ORIGIN_COLUMNS)
            for file in sorted(path.glob("*.sql"))
            for statement in split_statements(file.read_text())
        )
        checksum = hashlib.sha256("\n".join(statements).encode()).hexdigest()[:16]
        migrations.append(Migration(int(match[1]), match[2], statements, checksum))
    if [migration.id for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise ConfigurationError(f"migrations in {folder} are not numbered 0001, 0002, … without gap")
    return tuple(migrations)


def split_statements(text: str) -> tuple[str, ...]:
    """Return the statements without comment lines; each ends with a semicolon at the end of a line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    parts = re.split(r";[ \t]*(?:\n|\Z)", "\n".join(lines))
    return tuple(part.strip() for part in parts if part.strip())
