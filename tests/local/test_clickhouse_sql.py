"""Where an insert's data begin, which format an answer has, and what is never run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.local.clickhouse.errors import ClickHouseError
from rollbus.local.clickhouse.sql import find_format, has_second_statement, refuse_unservable, split_insert, tokens


@pytest.mark.parametrize(
    ("sql", "statement", "name", "data"),
    [
        (b"INSERT INTO t (a, b) FORMAT Native\n\x00;\n", b"INSERT INTO t (a, b) ", "Native", b"\x00;\n"),
        (b"insert into t format CSV 1,2", b"insert into t ", "CSV", b"1,2"),
        (b"INSERT INTO `format x` FORMAT TSV\r\n1", b"INSERT INTO `format x` ", "TSV", b"1"),
        (b"INSERT INTO t -- FORMAT Null\n FORMAT TSV\n1", b"INSERT INTO t -- FORMAT Null\n ", "TSV", b"1"),
        (b"INSERT INTO t SETTINGS async_insert=0 FORMAT JSONEachRow\n{}", None, "JSONEachRow", b"{}"),
        (b"INSERT INTO t FORMAT TSV\n\n1", b"INSERT INTO t ", "TSV", b"\n1"),
        (b"INSERT INTO t FORMAT TSV", b"INSERT INTO t ", "TSV", b""),
        (b"INSERT INTO FUNCTION remote('FORMAT x', t) FORMAT TSV\n1", None, "TSV", b"1"),
    ],
)
def test_an_insert_is_split_where_its_data_begin(sql: bytes, statement: bytes | None, name: str, data: bytes) -> None:
    insert = split_insert(sql)
    assert insert is not None
    assert (insert.format, insert.data) == (name, data)
    assert statement is None or insert.statement == statement


@pytest.mark.parametrize(
    "sql",
    [
        b"SELECT 1 FORMAT Native",
        b"INSERT INTO t SELECT 1 FORMAT TSV",
        b"INSERT INTO t VALUES ('FORMAT Native')",
        b"INSERT INTO t (format, b) VALUES (1, 2)",
        b"CREATE TABLE t (a Int8) ENGINE = Memory",
        b"",
    ],
)
def test_other_statements_carry_no_data(sql: bytes) -> None:
    assert split_insert(sql) is None


@given(st.binary())
def test_no_data_can_change_the_statement(data: bytes) -> None:
    insert = split_insert(b"INSERT INTO t (a) FORMAT RowBinary\n" + data)
    assert insert is not None
    assert (insert.statement, insert.format, insert.data) == (b"INSERT INTO t (a) ", "RowBinary", data)


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        (b"SELECT 1 FORMAT JSON", "JSON"),
        (b"SELECT 1 format JSONCompact SETTINGS max_threads=1", "JSONCompact"),
        (b"SELECT 'FORMAT JSON' -- FORMAT CSV", None),
        (b"SELECT format FROM t", None),
        (b"SELECT format FORMAT CSV", "CSV"),
        (b"SELECT * FROM (SELECT 1 AS a) FORMAT CSV;", "CSV"),
    ],
)
def test_the_format_of_an_answer_is_the_one_the_statement_names(sql: bytes, name: str | None) -> None:
    assert find_format(sql) == name


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        (b"CREATE TABLE k (a String) ENGINE = Kafka SETTINGS kafka_broker_list = 'x'", 56),
        (b"create table k (a String) engine /* none */ = /* yes */ `Kafka`('a')", 56),
        (b"CREATE TABLE k (a String) ENGINE Kafka", 56),
        (b"ATTACH TABLE k (a String) ENGINE=S3Queue('x')", 56),
        (b"CREATE TABLE r (a Int8) ENGINE = ReplicatedMergeTree('/x', 'r') ORDER BY a", 56),
        (b"CREATE DATABASE d ENGINE = MaterializedPostgreSQL('x')", 56),
        (b"CREATE MATERIALIZED VIEW v ENGINE = RabbitMQ AS SELECT 1", 56),
        (b"SELECT * FROM Python(frame)", 46),
        (b"SELECT * FROM python ( frame )", 46),
        (b"SELECT * FROM `Python`(frame)", 46),
        (b"CREATE VIEW v AS SELECT * FROM Python(frame)", 46),
        (b"SELECT 1 INTO OUTFILE 'x'", 319),
        (b"SELECT 1 INTO/**/OUTFILE 'x'", 319),
        (b"INSERT INTO t FROM INFILE 'x' FORMAT CSV", 78),
    ],
)
def test_a_statement_that_would_harm_the_process_is_refused(sql: bytes, code: int) -> None:
    with pytest.raises(ClickHouseError) as refusal:
        refuse_unservable(sql)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    "sql",
    [
        b"CREATE TABLE t (engine String, kafka String) ENGINE = ReplacingMergeTree(v) ORDER BY engine",
        b"CREATE TABLE t (a Int8) ENGINE = MergeTree ORDER BY a COMMENT 'ENGINE = Kafka'",
        b"CREATE VIEW v AS SELECT engine FROM system.tables WHERE engine = 'Kafka'",
        b"CREATE MATERIALIZED VIEW v ENGINE = AggregatingMergeTree ORDER BY a AS SELECT 1 AS a",
        b"CREATE DATABASE d ENGINE = Atomic",
        b"SELECT 'Python(x)', \"Python\" FROM t -- Python(x)",
        b"SELECT 'INTO OUTFILE'",
        b"INSERT INTO t VALUES ('INTO OUTFILE'), ('Python(x)')",
    ],
)
def test_words_in_strings_comments_and_names_are_not_refused(sql: bytes) -> None:
    refuse_unservable(sql)


@pytest.mark.parametrize(
    ("sql", "second"),
    [
        (b"SELECT 1; SELECT 2", True),
        (b"SELECT 1;;", False),
        (b"SELECT ';' -- ; x", False),
        (b"SELECT $$;'$$, $a$ $$ ; $a$", False),
        (b"SELECT 1 /* ; */ ; /* end */ ", False),
        (b"DROP TABLE t; not sql", True),
    ],
)
def test_a_second_statement_is_one_after_a_semicolon(sql: bytes, second: bool) -> None:
    assert has_second_statement(sql) is second


@pytest.mark.parametrize("piece", [b"'\\", b"`\\", b'"\\', b"$a%d$ ", b"$%d$", b"''", b"$"])
def test_a_statement_that_is_never_closed_is_read_once_and_not_once_per_byte(piece: bytes) -> None:
    sql = b"SELECT " + b"".join(piece % number if b"%" in piece else piece for number in range(100_000))
    read = "".join(token.text for token in tokens(sql))  # minutes, where each quote looks for its end again
    assert read.upper().replace(" ", "") == sql.decode().upper().replace(" ", "")


@pytest.mark.parametrize(
    ("sql", "kinds"),
    [
        (b"SELECT $a$ $b$ $a$ 1", ["name", "string", "other"]),
        (b"$a$ 'b", ["other", "name", "string"]),
        (b"$$a$b$$ $a$", ["string", "other", "name"]),
        (b"SELECT 'it''s \\' one' `a``b`", ["name", "string", "name"]),
    ],
)
def test_strings_and_names_end_where_clickhouse_ends_them(sql: bytes, kinds: list[str]) -> None:
    assert [token.kind for token in tokens(sql)] == kinds
