"""The role of `rollbus sql grants` on the engine's own access control: what a server lets a reader do, and refuses.

The engine runs here without the endpoint's checks and confinement. It takes users from a file, so the printed
grants and limits become those of the one user that it has.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import bind, list_queries
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.plain_views import make_plain_views
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.clickhouse.reader_role import READONLY_LIMITS
from rollbus.local.process.ports import find_free_port
from tests.console import ROLLBUS
from tests.services.endpoint.guarded_endpoint import Guarded, running_endpoint

pytestmark = pytest.mark.services

DENIAL_WORDS = ("ACCESS_DENIED", "READONLY", "no tables satisfied")
PLANTED_SECRET = "the owner's key to everything"
QUERY_PROGRAM = """
import json, sys
import chdb
statements = json.load(sys.stdin)
connection = chdb.connect(sys.argv[1])
for statement in statements:
    try:
        rows = connection.query(statement, "CSV").bytes().decode(errors="replace")
        print(json.dumps([True, rows]), flush=True)
    except Exception as error:
        print(json.dumps([False, str(error)]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Role:
    """A user that has what the printed statements give, and nothing else."""

    folder: Path

    def ask(self, *statements: str) -> list[tuple[bool, str]]:
        """Return for each statement whether it ran, and its rows or the error."""
        database = f"{self.folder / 'data'}?config-file={self.folder / 'config.xml'}"
        process = subprocess.run(
            [sys.executable, "-c", QUERY_PROGRAM, database],
            input=json.dumps(statements),
            capture_output=True,
            text=True,
            check=True,
        )
        return [tuple(json.loads(line)) for line in process.stdout.splitlines()]


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Role:
    folder = tmp_path_factory.mktemp("role")
    (folder / "secret").write_text(PLANTED_SECRET)
    with running_endpoint(Guarded(find_free_port(), folder)) as endpoint:
        settings = ClickHouseSettings(port=endpoint.port, password=endpoint.password)  # type: ignore[arg-type]
        migrate(settings)
        make_plain_views(settings)
        with endpoint.client() as owner:
            owner.command("CREATE TABLE default.numbers (id UInt32) ENGINE = MergeTree ORDER BY id AS SELECT 7")
            owner.command(f"CREATE TABLE rollbus.places (path String) ENGINE = Log AS SELECT '{folder / 'secret'}'")
    printed_grants = subprocess.run(
        [ROLLBUS, "sql", "grants"], capture_output=True, text=True, check=True, cwd=folder
    ).stdout
    (folder / "users.xml").write_text(users_of(printed_grants))
    (folder / "config.xml").write_text(
        f"<clickhouse><user_directories><users_xml><path>{folder / 'users.xml'}</path></users_xml></user_directories>"
        "</clickhouse>"
    )
    return Role(folder)


def users_of(printed_grants: str) -> str:
    """Return the engine's file of users, whose only user has the grants and the settings of the printed statements."""
    grants = re.findall(r"^(GRANT SELECT ON .*) TO rollbus_reader;$", printed_grants, re.MULTILINE)
    (settings,) = re.findall(r"rollbus_reader SETTINGS (.*) TO rollbus_reader;$", printed_grants, re.MULTILINE)
    values, constraints = map("".join, zip(*map(xml_of, settings.split(", ")), strict=True))
    limits = f"{values}<constraints>{constraints}</constraints>"
    queries = "".join(f"<query>{escape(grant)}</query>" for grant in grants)
    return (
        f"<clickhouse><profiles><default>{limits}</default></profiles><quotas><default/></quotas><users><default>"
        "<password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
        f"<grants>{queries}</grants></default></users></clickhouse>"
    )


def xml_of(setting: str) -> tuple[str, str]:
    """Return a setting of the printed profile, and its bounds, as a file of users has them.

    The embedded engine knows no CHANGEABLE_IN_READONLY, so a reader here can change nothing, or with `readonly` 2 all
    within the bounds.
    """
    parts = re.fullmatch(r"(\w+)(?: = (\S+))?(?: MIN (\d+))?(?: MAX (\d+))?( CHANGEABLE_IN_READONLY)?", setting)
    assert parts is not None, setting
    name, value, least, most, _ = parts.groups()
    bounds = "".join(f"<{kind}>{bound}</{kind}>" for kind, bound in (("min", least), ("max", most)) if bound)
    return f"<{name}>{value}</{name}>" if value else "", f"<{name}>{bounds}</{name}>" if bounds else ""


def test_a_reader_can_ask_every_saved_question_and_read_every_plain_view(role: Role) -> None:
    questions = [fill(query.sql, bind(query, {})) for query in list_queries()]
    statements = ["USE rollbus", *questions]
    for statement, (is_ok, answer) in zip(statements, role.ask(*statements), strict=True):
        assert is_ok, f"{answer}\n{statement}"
    ((_, tables),) = role.ask("SHOW TABLES FROM rollbus_views")
    views = [f"SELECT count() FROM rollbus_views.`{table.strip(chr(34))}`" for table in tables.split()]
    assert len(views) > 10
    assert [answer for is_ok, answer in role.ask(*views) if not is_ok] == []


def fill(sql: str, values: dict[str, Any]) -> str:
    """Return the question with its values in place; its tables are those of `rollbus`."""
    for name, value in values.items():
        literal = str(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"
        sql = re.sub(r"\{" + name + r":[^}]+\}", literal.replace("\\", r"\\"), sql)
    return sql


REFUSED_STATEMENTS = [
    "SELECT * FROM default.numbers",
    "SELECT * FROM merge('default', '^numbers$')",
    "DESCRIBE TABLE default.numbers",
    "SELECT * FROM file('{secret}', 'LineAsString')",
    "SELECT * FROM loop(file('{secret}', 'LineAsString')) LIMIT 1",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM remote('127.0.0.1:1', 'system', 'one')",
    "SELECT * FROM s3('http://127.0.0.1:1/bucket/key', 'LineAsString')",
    "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM executable('cat {secret}', 'TSV', 'x String')",
    "SELECT * FROM dictionary('places')",
    "SELECT addressToLine(1)",
    "INSERT INTO FUNCTION file('{folder}/out.csv', 'CSV', 'x UInt8') VALUES (1)",
    "INSERT INTO rollbus.places VALUES ('x')",
    "ALTER TABLE rollbus.places DELETE WHERE 1",
    "DROP TABLE rollbus.places",
    "TRUNCATE TABLE rollbus.places",
    "CREATE TABLE rollbus.mine (x UInt8) ENGINE = Log",
    "CREATE TEMPORARY TABLE mine AS SELECT 1",
    "CREATE FUNCTION mine AS x -> x",
    "CREATE USER mine",
    "GRANT ALL ON *.* TO default",
    "SYSTEM SHUTDOWN",
    "SHOW USERS",
    "BACKUP TABLE rollbus.places TO File('{folder}/out')",
    "SELECT * FROM rollbus.places SETTINGS readonly = 0",
    "SELECT * FROM rollbus.places SETTINGS max_rows_to_read = 0",
]


def test_a_reader_is_refused_every_other_statement(role: Role) -> None:
    refused_statements = [
        template.replace("{secret}", str(role.folder / "secret")).replace("{folder}", str(role.folder))
        for template in REFUSED_STATEMENTS
    ]
    for statement, (is_ok, reply) in zip(refused_statements, role.ask(*refused_statements), strict=True):
        assert not is_ok, f"{reply}\n{statement}"
        assert any(code in reply for code in DENIAL_WORDS), f"{reply}\n{statement}"
        assert PLANTED_SECRET not in reply
    assert not list(role.folder.glob("out*"))


LOOSER_LIMITS = [
    f"SELECT 1 SETTINGS {name} = {value}"
    for name, limit in READONLY_LIMITS.items()
    for value in (0, int(limit) + 1)
] + ["SELECT 1 SETTINGS max_threads = 1000"]  # fmt: skip
TIGHTER_LIMITS = [f"SELECT 1 SETTINGS {name} = {int(limit) // 2}" for name, limit in READONLY_LIMITS.items()]


def test_a_reader_can_tighten_limits_but_not_loosen_them(role: Role) -> None:
    """A limit of 0 is not a limit for ClickHouse."""
    users = (role.folder / "users.xml").read_text()
    (role.folder / "users.xml").write_text(users.replace("<readonly>1</readonly>", "<readonly>2</readonly>"))
    try:
        for statement, (is_ok, answer) in zip(LOOSER_LIMITS, role.ask(*LOOSER_LIMITS), strict=True):
            assert (is_ok, "SETTING_CONSTRAINT_VIOLATION" in answer) == (False, True), f"{answer}\n{statement}"
        assert [answer for is_ok, answer in role.ask(*TIGHTER_LIMITS) if not is_ok] == []
    finally:
        (role.folder / "users.xml").write_text(users)
