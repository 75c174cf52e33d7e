"""A reader of SQL takes nothing but rows: what the check of the statement overlooks, the process itself cannot do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from rollbus.consumers.clickhouse.questions.ids import UnknownIdError, require_id
from rollbus.consumers.clickhouse.questions.saved_questions import ask, bind
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.ui.page_questions import questions
from tests.console import ROLLBUS
from tests.services.endpoint.guarded_endpoint import Guarded, guarded

__all__ = ["guarded"]
pytestmark = pytest.mark.services

PLANTED_SECRET = "the owner's key to everything"
READONLY, NOT_ALLOWED = 164, 319


@pytest.fixture
def reader(guarded: Guarded) -> Iterator[Client]:
    with guarded.client("readonly") as client:
        yield client


@pytest.fixture(autouse=True, scope="module")
def planted_secret(guarded: Guarded) -> Iterator[None]:
    secret = guarded.folder / "secret"
    secret.write_text(PLANTED_SECRET)
    with guarded.client() as owner:
        owner.command(f"CREATE TABLE places (path String) ENGINE = Log AS SELECT '{secret}'")
        owner.command("CREATE TABLE parameters (path String) ENGINE = Join(ANY, LEFT, path)")
        owner.command("CREATE FUNCTION open_it AS path -> file(path)")
        owner.command("CREATE VIEW opened AS SELECT file(path) AS text FROM places")
        owner.command("CREATE VIEW running AS SELECT * FROM merge('system', '^processes$')")
    yield
    secret.unlink()


REFUSED_STATEMENTS = [
    "SELECT * APPLY(file) FROM places",
    "SELECT * APPLY file FROM places",
    "SELECT * APPLY(path -> file(path)) FROM places",
    "SELECT places.* APPLY(`fi\\x6ce`) FROM places",
    "SELECT COLUMNS('path') APPLY(\"file\") FROM places",
    "SELECT * EXCEPT(nothing) APPLY(file) FROM (SELECT path, 1 AS nothing FROM places)",
    "SELECT * REPLACE(file(path) AS path) FROM places",
    "SELECT arrayMap(file, [path]) FROM places",
    "SELECT arrayMap(`FILE`, [path]) FROM places",
    "SELECT arrayFold(file, [path], '') FROM places",
    "SELECT arrayFilter(file, [path]) FROM places",
    "WITH file AS f SELECT arrayMap(f, [path]) FROM places",
    "SELECT arrayReduce('groupConcat(file(\\'{secret}\\'))', ['a', 'b'])",
    "SELECT arrayReduce('groupConcat((SELECT query FROM system.processes LIMIT 1))', ['a', 'b'])",
    "SELECT arrayReduce(concat('groupConcat(fi', 'le(\\'{secret}\\'))'), ['a', 'b'])",
    "SELECT arrayReduceInRanges('groupConcat(file(\\'{secret}\\'))', [(1, 2)], ['a', 'b'])",
    "SELECT arrayMap(x -> finalizeAggregation(initializeAggregation('groupConcat(file(\\'{secret}\\'))', x)), ['a'])",
    "SELECT b FROM generateRandom('a UInt8, b String ALIAS file(\\'{secret}\\')') LIMIT 1",
    "SELECT b FROM values('a UInt8, b String ALIAS file(\\'{secret}\\')', 1)",
    "SELECT * FROM format(JSONEachRow, 'a UInt8, b String DEFAULT file(\\'{secret}\\')', '{\"a\": 1}')",
    "SELECT 1 FROM numbers(1) AS n CROSS JOIN format(JSONEachRow, 'b String ALIAS file(\\'{secret}\\')', '{}') AS f",
    "SELECT * FROM null('a UInt8 DEFAULT length(file(\\'{secret}\\'))')",
    "DESCRIBE TABLE format(JSONEachRow, 'a UInt8 DEFAULT length(file(\\'{secret}\\'))', '{}')",
    "SELECT 1 SETTINGS additional_result_filter = 'file(\\'{secret}\\') = 1'",
    "SELECT path AS file FROM places WHERE arrayExists(file, [path])",
    "SELECT sum(1) OVER (ORDER BY file(path)) FROM places",
    "SELECT * FROM places WHERE EXISTS(SELECT file(path))",
    "SELECT 1 UNION ALL SELECT length(file(path)) FROM places",
    "SELECT * FROM view(SELECT * APPLY(file) FROM places)",
    "SELECT * FROM viewIfPermitted(SELECT file('{secret}') AS x ELSE null('x String'))",
    "SELECT * FROM eval('SELECT file(''{secret}'')')",
    "EXPLAIN SELECT file('{secret}')",
    "EXPLAIN QUERY TREE SELECT file('{secret}')",
    "SELECT file('{secret}') FORMAT Null",
    "SELECT file('/proc/self/environ')",
    "SELECT * FROM loop(file('{secret}', 'LineAsString')) LIMIT 1",
    "SELECT * FROM input('x String')",
    "SELECT * FROM dictionary('places')",
    "SELECT dictGet('places', 'path', 1)",
    "SELECT joinGet('parameters', 'path', '')",
    "SELECT hasColumnInTable('system', 'processes', 'query')",
    "SELECT getMacro('secret')",
    "SELECT getServerSetting('path')",
    "SELECT getSetting('max_memory_usage')",
    "SELECT getClientHTTPHeader('Authorization')",
    "SELECT globalVariable('version')",
    "SELECT hostName(), FQDN(), serverUUID()",
    "SELECT filesystemAvailable()",
    "SELECT showCertificate()",
    "SELECT addressToLine(1)",
    "SELECT fuzzQuery('SELECT 1')",
    "SELECT evalMLMethod(1)",
    "SELECT * FROM system.processes",
    "SELECT * FROM `system`.`processes`",
    "SELECT * FROM \"system\".\"processes\" AS p",
    "SELECT 1 IN system.processes",
    "SELECT 1 WHERE ('a', 'b') IN (SELECT user, query FROM system.processes)",
    "SELECT * FROM merge('system', '^processes$')",
    "SELECT * FROM cluster('default', system.processes)",
    "SELECT * FROM mergeTreeIndex(currentDatabase(), numbers)",
    "SELECT * FROM system.server_settings",
    "SELECT * FROM system.named_collections",
    "SELECT * FROM system.disks",
    "SELECT * FROM system.stack_trace",
    "SELECT * FROM system.user_query_log",
    "SELECT * FROM system.query_cache",
    "SELECT * FROM system.certificates",
    "SELECT * FROM system.mutations",
    "SELECT * FROM system.zookeeper WHERE path = '/'",
    "DESCRIBE TABLE system.processes",
    "SHOW TABLES WHERE name = file('{secret}')",
    "SHOW TABLES LIMIT length(file('{secret}'))",
    "SHOW COLUMNS FROM numbers WHERE field != file('{secret}')",
    "SHOW INDEX FROM numbers WHERE throwIf(1, file('{secret}'))",
    "SHOW PROCESSLIST",
    "SHOW GRANTS",
    "SHOW USERS",
    "SHOW ENGINES",
    "CHECK TABLE numbers",
    "USE system",
    "EXPLAIN TABLE OVERRIDE mysql('127.0.0.1:1', 'd', 't', 'u', 'p') PARTITION BY x",
    "SELECT 1 FORMAT Template SETTINGS format_template_row = '{secret}'",
    "SELECT * FROM numbers SETTINGS log_comment = 'x', readonly = 0",
    "CREATE VIEW mine AS SELECT * APPLY(file) FROM places",
    "EXECUTE AS default SELECT 1",
    "SELECT path INTO OUTFILE '{folder}/out' FROM places",
    "SELECT * FROM `\\x50ython`(x)",
    "SELECT ‘'’, * FROM Python(x) -- '",
]  # fmt: skip


@pytest.mark.parametrize("statement", REFUSED_STATEMENTS)
def test_a_reader_may_only_read(guarded: Guarded, reader: Client, statement: str) -> None:
    filled = statement.replace("{secret}", str(guarded.folder / "secret")).replace("{folder}", str(guarded.folder))
    with pytest.raises(DatabaseError) as refusal:
        reader.command(filled)
    assert PLANTED_SECRET not in str(refusal.value)
    assert refusal.value.code in {READONLY, NOT_ALLOWED, 62, 36}, refusal.value
    assert not (guarded.folder / "out").exists()


SHAPES = ("({text}, [1])", "({text}, 'a')", "({text}, [(1, 1)], [1])", "({text})(1)")
ASKING = f"""
import json
import chdb
from rollbus.local.clickhouse.read_only_statements import FUNCTIONS, TABLE_FUNCTIONS, find_reach

handle = chdb.connect(":memory:")
functions, tables = (handle.query(asked, "TSVRaw").bytes() for asked in (FUNCTIONS, TABLE_FUNCTIONS))
refused = find_reach(functions, tables).functions - {{"arrayreduce"}}  # one that does it shows that the test sees it
found = set()
for name in sorted({{json.loads(line)["name"] for line in functions.splitlines()}}):
    if name.lower() in refused or name.startswith("sleep"):
        continue
    for shape in {SHAPES}:
        try:
            handle.query(f"SELECT `{{name}}`" + shape.format(text=r"'groupConcat(file(\\'/of/nobody\\'))'"), "Null")
        except Exception as error:
            if "Cannot open file" in str(error):
                found.add(name)
print(*found)
"""


def test_no_function_that_a_reader_may_call_runs_a_text() -> None:
    """Every function of this engine is called with a text that opens a file if it is taken for SQL."""
    completed = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["arrayReduce"]


@pytest.mark.parametrize(
    ("database", "table"), [("system", "processes"), ("default", "opened"), ("default", "no_such_table")]
)
def test_a_name_that_comes_as_a_parameter_is_checked_like_any_other(reader: Client, database: str, table: str) -> None:
    with pytest.raises(DatabaseError) as refusal:
        reader.query(
            "SELECT * FROM {database:Identifier}.{table:Identifier}",
            parameters={"database": database, "table": table},
        )
    assert PLANTED_SECRET not in str(refusal.value)


def test_the_tables_of_system_do_not_become_the_current_database(guarded: Guarded) -> None:
    with guarded.client("readonly", database="default") as client, pytest.raises(DatabaseError):
        client.query("SELECT * FROM processes", settings={"database": "system"})
    with pytest.raises(DatabaseError):
        guarded.client("readonly", database="system").query("SELECT query FROM processes")


@pytest.mark.parametrize("statement", ["SELECT * FROM opened", "SELECT open_it(path) FROM places"])
def test_a_view_or_a_function_of_the_owner_cannot_open_a_file_either(reader: Client, statement: str) -> None:
    with pytest.raises(DatabaseError) as refusal:
        reader.query(statement)
    assert PLANTED_SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    "path", ["{secret}", "/proc/self/environ", "/proc/1/environ", "/proc/self/cmdline", "/etc/passwd", "{home}/.netrc"]
)
def test_the_process_cannot_open_what_lies_outside_its_data(guarded: Guarded, path: str) -> None:
    """Asked by the owner, whose statements nobody checks: this is what an overlooked function would meet."""
    filled = path.replace("{secret}", str(guarded.folder / "secret")).replace("{home}", str(Path.home()))
    with guarded.client() as owner:
        for query in (f"SELECT file('{filled}')", f"SELECT * FROM file('{filled}', 'RawBLOB')"):
            with pytest.raises(DatabaseError) as refusal:
                owner.query(query)
            assert PLANTED_SECRET not in str(refusal.value)
            assert guarded.password not in str(refusal.value)
        with pytest.raises(DatabaseError):
            owner.command(f"INSERT INTO FUNCTION file('{guarded.folder}/out.csv', 'CSV', 'x UInt8') VALUES (1)")
    assert not (guarded.folder / "out.csv").exists()


def test_the_process_reaches_no_network_and_starts_no_program(guarded: Guarded) -> None:
    with guarded.client() as owner:
        for query in (
            f"SELECT * FROM remote('{guarded.url.split('/')[2]}', 'system', 'one') SETTINGS connect_timeout = 1",
            f"SELECT * FROM url('{guarded.url}ping', 'LineAsString') SETTINGS http_max_tries = 1",
            "SELECT * FROM executable('id', 'TSV', 'x String')",
        ):
            with pytest.raises(DatabaseError):
                owner.query(query)


def read_if_there(path: Path) -> bytes:
    """Read a file of a process, which may have ended since it was listed."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_no_secret_is_in_the_environment_of_the_process(guarded: Guarded) -> None:
    processes = [
        folder
        for folder in Path("/proc").iterdir()
        if folder.name.isdecimal()
        and f"--port\0{guarded.port}\0".encode() in read_if_there(folder / "cmdline")
        and int(folder.name) != os.getpid()
    ]
    assert processes
    for folder in processes:
        environment = (folder / "environ").read_bytes()
        assert guarded.password.encode() not in environment
        assert guarded.reader_password.encode() not in environment
        names = {entry.partition(b"=")[0].decode() for entry in environment.split(b"\0") if entry}
        assert all(name.startswith(("PATH", "LANG", "LC_", "TZ", "PYTHON", "OMP_", "LD_")) for name in names)


def test_every_saved_question_can_be_asked_by_a_reader(guarded: Guarded) -> None:
    owner = ClickHouseSettings(port=guarded.port, password=guarded.password, database="asked")  # type: ignore[arg-type]
    migrate(owner)
    asking = owner.model_copy(
        update={"user": "readonly", "password": owner.password.__class__(guarded.reader_password)}
    )
    with closing(ClickHouse(asking)) as client:
        for query in questions().values():
            assert ask(asking, query.sql, bind(query, {})).columns
            if query.ids:
                with pytest.raises(UnknownIdError):
                    require_id(client, query.ids[0], bind(query, {query.ids[0].name: 77}))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1 AS file, 'url' AS url, 2 AS remote",
        "SELECT count() AS n, uniqIf(id, id > 1), quantilesTDigest(0.5)(id) FROM numbers GROUP BY name WITH TOTALS",
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
        "SELECT * EXCEPT(name) REPLACE(id + 1 AS id) FROM numbers LIMIT 1 BY id",
        "SELECT arrayMap((x, y) -> x + y, [1], [2]), map('a', 1)['a'], (1, 2).1, CAST('1' AS UInt8), '1'::UInt8",
        "SELECT CASE id WHEN 1 THEN 'a' ELSE 'b' END, if(id = 1, 2, 3) FROM numbers",
        "SELECT id, sum(id) OVER w FROM numbers WINDOW w AS (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        "SELECT * FROM numbers AS a ASOF LEFT JOIN numbers AS b ON a.name = b.name AND a.id >= b.id LIMIT 3",
        "SELECT n FROM (SELECT 1 AS n) ORDER BY n WITH FILL FROM 0 TO 5 STEP 1 INTERPOLATE",
        "SELECT x FROM numbers ARRAY JOIN [id, 2] AS x PREWHERE id < 10 LIMIT 5",
        "SELECT JSONExtractString('{\"a\": \"b\"}', 'a'), toDateTime64('2026-01-01 00:00:00', 3, 'UTC'), now()",
        "SELECT 1 INTERSECT SELECT 1 EXCEPT SELECT 2",
        "FROM numbers SELECT count()",
        "SELECT version(), timezone(), currentUser(), currentDatabase()",
        "SELECT name, value, readonly FROM system.settings LIMIT 1",
        "SELECT table_name FROM information_schema.tables LIMIT 1",
        "SHOW TABLES", "SHOW DATABASES", "SHOW COLUMNS FROM numbers", "SHOW CREATE TABLE numbers",
        "DESCRIBE TABLE numbers", "EXISTS TABLE numbers", "EXPLAIN indexes = 1 SELECT * FROM numbers WHERE id = 1",
        "EXPLAIN SYNTAX SELECT 1", "SELECT number FROM numbers(3)", "SELECT * FROM generate_series(1, 3)",
        "SELECT format('{} {}', 1, 2)", "SELECT * FROM view(SELECT 1)",
    ],
)  # fmt: skip
def test_a_readers_usual_statement_is_served(reader: Client, statement: str) -> None:
    reader.query(statement)


def run_rollbus(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROLLBUS, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_a_query_of_the_command_line_changes_nothing_unless_asked_to(guarded: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    settings = {"port": guarded.port, "password": guarded.password, "database": "default"}
    path.write_text(json.dumps({"clickhouse": settings}))

    def query(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_rollbus(tmp_path, "--config", str(path), "sql", "query", *arguments)

    with guarded.client() as owner:
        owner.command("CREATE TABLE kept (id UInt8) ENGINE = Log AS SELECT 7")
    for statement in (
        "DROP TABLE kept",
        "INSERT INTO kept VALUES (1)",
        "ALTER TABLE kept DELETE WHERE 1",
        "SYSTEM STOP MERGES",
    ):
        refused = query(statement)
        assert refused.returncode == 1
        assert "readonly" in refused.stderr
        assert "`rollbus sql query --write` lets a statement change tables" in refused.stderr
    assert query("SELECT id FROM kept", "-o", "csv").stdout == "id\n7\n"
    assert query("DROP TABLE kept", "--write").returncode == 0
    assert "kept" in query("SELECT id FROM kept").stderr


def test_the_printed_role_is_sql_that_a_server_reads(guarded: Guarded, tmp_path: Path) -> None:
    printed = run_rollbus(tmp_path, "sql", "grants", "--user", "ann").stdout
    statements = printed.split(";\n")[:-1]
    assert "GRANT SELECT ON `rollbus`.* TO rollbus_reader" in statements
    with guarded.client() as owner:
        for statement in statements:
            owner.command(f"EXPLAIN AST {statement}")
