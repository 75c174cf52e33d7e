"""clickhouse-connect's ordinary HTTP client, sync and async, against the local endpoint."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator

import clickhouse_connect
import pytest
from clickhouse_connect.driver.asyncclient import AsyncClient
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

pytestmark = pytest.mark.services

Address = tuple[str, int]
ROWS = 100_000


@pytest.fixture
def database(clickhouse: Address, namespace: str) -> Iterator[str]:
    """A database of the test's own."""
    name = namespace.strip(".").replace("-", "_")
    client = clickhouse_connect.get_client(host=clickhouse[0], port=clickhouse[1])
    client.command(f"CREATE DATABASE {name}")
    yield name
    client.command(f"DROP DATABASE {name}")
    client.close()


@pytest.fixture
def client(clickhouse: Address, database: str) -> Iterator[Client]:
    with clickhouse_connect.get_client(host=clickhouse[0], port=clickhouse[1], database=database) as client:
        client.command("CREATE TABLE numbers (id UInt32, name String) ENGINE = MergeTree ORDER BY id")
        yield client


@pytest.fixture
async def async_client(clickhouse: Address, database: str) -> AsyncIterator[AsyncClient]:
    client = await clickhouse_connect.get_async_client(host=clickhouse[0], port=clickhouse[1], database=database)
    yield client
    await client.close()


def count(client: Client) -> tuple[int, int]:
    """Rows, and the sum of their ids."""
    return tuple(client.query("SELECT count(), sum(id) FROM numbers").result_rows[0])


@pytest.mark.parametrize("compress", ["lz4", "zstd", "gzip", False])
def test_every_row_of_a_large_insert_arrives_with_every_compression(
    clickhouse: Address, client: Client, database: str, compress: str | bool
) -> None:
    columns: list[list[int] | list[str]] = [list(range(ROWS)), [str(i) for i in range(ROWS)]]
    with clickhouse_connect.get_client(
        host=clickhouse[0], port=clickhouse[1], database=database, compress=compress
    ) as writer:
        summary = writer.insert("numbers", columns, column_names=["id", "name"], column_oriented=True)
        assert summary.written_rows == ROWS
        assert len(writer.query("SELECT * FROM numbers").result_rows) == ROWS
    assert count(client) == (ROWS, ROWS * (ROWS - 1) // 2)


def test_rows_and_raw_formats_are_inserted(client: Client) -> None:
    client.insert("numbers", [[1, "one"], [2, "two; not the end"]], column_names=["id", "name"])
    client.raw_insert("numbers", insert_block=b'{"id":3,"name":"three"}\n{"id":4,"name":";"}', fmt="JSONEachRow")
    client.raw_insert("numbers", column_names=["id"], insert_block="5\n6\n", fmt="CSV")
    client.command("INSERT INTO numbers VALUES (7, 'a;b'), (8, '(')")
    client.command("INSERT INTO numbers (id) FORMAT TSV", data="9\n")
    assert count(client) == (9, 45)


def test_values_bind_on_the_server(client: Client) -> None:
    rows = client.query(
        "SELECT {number:UInt8} + 1, {text:String}, {many:Array(String)}",
        parameters={"number": 41, "text": "it's\ta \\ {x}", "many": ["a", "b'c"]},
    ).result_rows
    assert rows == [(42, "it's\ta \\ {x}", ["a", "b'c"])]


def test_a_long_statement_travels_in_the_address(client: Client) -> None:
    comment = "x" * 200_000
    client.command(f"INSERT INTO numbers (id) /* {comment} */ FORMAT CSV", data="1\n2\n")
    assert count(client) == (2, 3)


def test_many_rows_of_values_are_not_part_of_the_statement(client: Client) -> None:
    values = ", ".join(f"({i}, 'row; {i}')" for i in range(50_000))
    client.command(f"INSERT INTO numbers VALUES {values}")
    assert count(client) == (50_000, 50_000 * 49_999 // 2)


def test_a_long_bound_value_travels_as_a_form(client: Client) -> None:
    text = "möwe\r\n--line" * 10_000
    assert client.query("SELECT {text:String}", parameters={"text": text}).result_rows == [(text,)]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT * FROM nowhere", 60),
        ("SELEC 1", 62),
        ("SELECT toUInt8('x')", 6),
        ("SELECT 1; DROP TABLE numbers", 62),
        ("CREATE TABLE k (a String) ENGINE = Kafka SETTINGS kafka_broker_list = 'x'", 56),
        ("SELECT * FROM Python(anything)", 46),
        ("SELECT 1 INTO OUTFILE 'x.csv'", 319),
    ],
)
def test_errors_carry_the_code_of_their_cause(client: Client, statement: str, code: int) -> None:
    with pytest.raises(DatabaseError) as refusal:
        client.command(statement)
    assert refusal.value.code == code
    assert count(client) == (0, 0)


def test_a_broken_block_inserts_nothing(client: Client) -> None:
    with pytest.raises(DatabaseError) as refusal:
        client.raw_insert("numbers", insert_block=b'{"id":1,"name":"a"}\n{"id": broken', fmt="JSONEachRow")
    assert refusal.value.code == 27
    assert count(client) == (0, 0)


def test_results_stream_in_blocks(client: Client) -> None:
    with client.query_row_block_stream("SELECT number FROM numbers(200000)") as stream:
        assert sum(row[0] for block in stream for row in block) == 200_000 * 199_999 // 2


def test_a_read_only_request_leaves_the_session_writable(client: Client) -> None:
    with pytest.raises(DatabaseError) as refusal:
        client.command("INSERT INTO numbers VALUES (1, 'a')", settings={"readonly": 1})
    assert refusal.value.code == 164
    client.command("INSERT INTO numbers VALUES (1, 'a')")
    assert count(client) == (1, 1)


def test_a_session_keeps_its_own_settings_and_temporary_tables(clickhouse: Address, client: Client) -> None:
    client.command("SET max_block_size = 1234")
    client.command("CREATE TEMPORARY TABLE mine (a UInt8)")
    client.command("INSERT INTO mine VALUES (1)")
    assert client.command("SELECT getSetting('max_block_size')", settings={"max_block_size": 7}) == 7
    assert client.command("SELECT getSetting('max_block_size')") == 1234
    assert client.command("SELECT count() FROM mine") == 1
    with clickhouse_connect.get_client(host=clickhouse[0], port=clickhouse[1]) as other:
        assert other.command("SELECT getSetting('max_block_size')") != 1234
        with pytest.raises(DatabaseError, match="mine"):
            other.command("SELECT count() FROM mine")


def test_a_repeated_insert_with_one_token_is_dropped(client: Client) -> None:
    client.command(
        "CREATE TABLE once (id UInt32) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    for _ in range(2):
        client.insert("once", [[1]], column_names=["id"], settings={"insert_deduplication_token": "t:p:0-0"})
    assert client.command("SELECT count() FROM once") == 1


def test_many_clients_work_at_once(clickhouse: Address, client: Client, database: str) -> None:
    failures: list[BaseException] = []

    def work(part: int) -> None:
        try:
            with clickhouse_connect.get_client(host=clickhouse[0], port=clickhouse[1], database=database) as mine:
                for i in range(10):
                    mine.insert("numbers", [[part * 10 + i, "x"]], column_names=["id", "name"])
                    mine.query("SELECT count() FROM numbers")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert count(client) == (80, sum(range(80)))


def test_a_get_request_reads_in_the_format_it_names(clickhouse: Address) -> None:
    url = f"http://{clickhouse[0]}:{clickhouse[1]}/?query=SELECT+1+AS+one&default_format=JSONEachRow"
    with urllib.request.urlopen(url) as response:
        assert response.read() == b'{"one":1}\n'
        assert response.headers["X-ClickHouse-Format"] == "JSONEachRow"
        assert response.headers["X-ClickHouse-Timezone"] == "UTC"


async def test_the_async_client_inserts_reads_and_fails_alike(client: Client, async_client: AsyncClient) -> None:
    await async_client.insert("numbers", [[i, str(i)] for i in range(1000)], column_names=["id", "name"])
    result = await async_client.query("SELECT sum(id) FROM numbers WHERE id >= {low:UInt32}", parameters={"low": 500})
    assert result.result_rows == [(sum(range(500, 1000)),)]
    with pytest.raises(DatabaseError) as refusal:
        await async_client.command("SELECT * FROM nowhere")
    assert refusal.value.code == 60
    counts = await asyncio.gather(*(async_client.query("SELECT count() FROM numbers") for _ in range(8)))
    assert {count.result_rows[0][0] for count in counts} == {1000}
    long = await async_client.query("SELECT length({text:String})", parameters={"text": "y" * 50_000})
    assert long.result_rows == [(50_000,)]


def test_a_get_request_must_not_write(clickhouse: Address, client: Client, database: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"http://{clickhouse[0]}:{clickhouse[1]}/?query=DROP+TABLE+{database}.numbers")
    with refusal.value as answer:
        assert answer.headers["X-ClickHouse-Exception-Code"] == "164"
    assert count(client) == (0, 0)
