"""Migrations and saved questions as files: what their headers must say."""

import re
from pathlib import Path

import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import bind, list_queries, load_query, parse_query
from rollbus.consumers.clickhouse.store.migrator import Migration, find_pending, load_migrations, split_statements
from rollbus.schemas.errors import ConfigurationError

REPEATABLE = re.compile(
    r"CREATE TABLE IF NOT EXISTS |CREATE OR REPLACE VIEW |"
    r"ALTER TABLE \w+ (ADD (COLUMN|INDEX) IF NOT EXISTS|MATERIALIZE (COLUMN|INDEX)|MODIFY SETTING) "
)


def test_statements_end_with_their_semicolon_and_lose_their_comments() -> None:
    assert split_statements("-- why\nSELECT 1;\n\nSELECT ';'\n  -- inside\nFROM t ;\n") == (
        "SELECT 1",
        "SELECT ';'\nFROM t",
    )


def test_every_statement_of_every_migration_can_run_twice() -> None:
    for migration in load_migrations():
        for statement in migration.statements:
            assert REPEATABLE.match(statement), statement[:60]


def test_migrations_that_leave_out_a_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "0002_second").mkdir()
    with pytest.raises(ConfigurationError, match="without gap"):
        load_migrations(tmp_path)


def test_a_migration_that_was_changed_after_its_release_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must not change"):
        find_pending((Migration(1, "a", (), "x"),), {1: "other"}, "db")


@pytest.mark.parametrize("query", list_queries(), ids=lambda query: query.name)
def test_every_question_says_what_it_answers_and_uses_each_of_its_parameters(query: object) -> None:
    question = load_query(query.name)  # type: ignore[attr-defined]
    assert question.description.endswith(".")
    assert "namespace" in {parameter.name for parameter in question.parameters}
    for parameter in question.parameters:
        assert f"{{{parameter.name}:{parameter.type}}}" in question.sql
    assert (question.chart or "") in re.findall(r"\w*", question.sql)
    assert question.sql.count("{") == sum(
        question.sql.count(f"{{{parameter.name}:{parameter.type}}}") for parameter in question.parameters
    )


def test_values_are_checked_before_they_are_sent() -> None:
    query = load_query("lineage-of-step")
    assert bind(query, {"step": "3"}) == {"namespace": "rollbus.", "run": "main", "step": 3}
    with pytest.raises(ConfigurationError, match="step must be Int64, got 'three'"):
        bind(query, {"step": "three"})
    with pytest.raises(ConfigurationError, match="run must be String, got None"):
        bind(query, {"run": None})
    with pytest.raises(ConfigurationError, match="no parameter stage; it has namespace, run, step"):
        bind(query, {"stage": "x"})


def test_an_unknown_question_lists_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="there are accounts, agreement_of_judges, before_and_after"):
        load_query("nothing")


def test_a_misspelled_question_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean lineage_of_step"):
        load_query("linage-of-step")


def test_a_header_names_the_column_that_a_chart_draws() -> None:
    assert parse_query("q", "-- name: q\n-- What.\n-- chart share\nSELECT 1").chart == "share"
    assert parse_query("q", "-- name: q\n-- What.\nSELECT 1").chart is None
    assert parse_query("q", "-- name: q\n-- What.\n-- chart share\nSELECT 1").description == "What."


def test_a_header_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must begin with '-- name: a'"):
        parse_query("a", "SELECT 1")
    with pytest.raises(ConfigurationError, match="is not like"):
        parse_query("a", "-- name: a\n-- What.\n-- param run String\nSELECT 1")


def test_no_sql_computes_a_variance_by_subtracting_large_sums() -> None:
    unstable = re.compile(
        r"\b(stddev|var|covar|skew|kurt)(Samp|Pop)(If|State|Merge|Array|OrNull)*\s*\(|\bcorr(If|State)?\s*\("
    )
    root = Path(__file__).parents[2]
    files = [path for folder in ("consumers", "rollbus", "streams") for path in (root / folder).rglob("*.sql")]
    assert len(files) > 60
    assert [path.name for path in files if unstable.search(path.read_text())] == []
