"""ClickHouse → the counts of each run; the one reader of the funnel's numbers.

It asks ten questions of a run, nine of them about the newest day, each of one pass over that day's rows. Where no
ClickHouse answers, or no sink has written, the funnel says so instead of numbers.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rollbus.consumers.clickhouse.questions.saved_questions import LIMITS, READ_ONLY, SavedQuery, bind, parse_query
from rollbus.consumers.clickhouse.store.client import ClickHouse, connection
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.health.funnel.funnel import Funnel, draw_funnel, without_numbers
from rollbus.health.funnel.numbers import (
    EpisodeCount,
    FunnelNumbers,
    FunnelSettings,
    InfluenceCount,
    LostCount,
    NextTurnCount,
    RefusedCount,
    RewardCount,
    RunCount,
    TurnCount,
    WaitingCount,
)
from rollbus.schemas.errors import ServiceError

FOLDER = Path(__file__).parent / "questions"
DAY_MS, HOUR_MS = 24 * 3_600_000, 3_600_000
"""Of episodes that began within a day; the pace is that of the last hour."""
SETTLED_MS = 60_000
"""A report that is this old and whose episode is not in ClickHouse waits for it: topics are not written at once."""


@cache
def questions() -> Mapping[str, SavedQuery]:
    """Return the questions by name."""
    queries = (parse_query(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.sql")))
    return {query.name: query for query in queries}


def count_funnels(
    clickhouse: ClickHouseSettings, namespace: str, runs: Iterable[FunnelSettings], now_ms: int
) -> tuple[Funnel, ...]:
    """Return each run's funnel now, by the broker's clock; one says why where ClickHouse cannot be asked."""
    funnels = []
    trouble: str | None = None
    for run in runs:
        if trouble is None:
            try:
                with connection(clickhouse) as client:
                    funnels.append(draw_funnel(count_run(client, namespace, run, now_ms), run))
                continue
            except ServiceError as error:
                trouble = f"the numbers are counted in ClickHouse. {error}"
        funnels.append(without_numbers(run, trouble))
    return tuple(funnels)


def count_run(client: ClickHouse, namespace: str, settings: FunnelSettings, now_ms: int) -> FunnelNumbers:
    """Return the counts of one run; raises ServiceError."""
    since_ms, recent_ms = now_ms - DAY_MS, now_ms - HOUR_MS
    values = {
        "namespace": namespace,
        "run": settings.run.run_id,
        "model": settings.run.model,
        "since_ms": since_ms,
        "recent_ms": recent_ms,
        "settled_ms": now_ms - SETTLED_MS,
        "known_ms": since_ms - settings.assembly.late_horizon_ms,
    }

    def ask(name: str) -> list[dict[str, Any]]:
        query = questions()[name]
        parameters = {parameter.name: values[parameter.name] for parameter in query.parameters}
        columns, rows = client.query(query.sql, bind(query, parameters), LIMITS | READ_ONLY)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    (run,), in_force = ask("funnel_run"), ask("funnel_settings")
    return FunnelNumbers(
        now_ms=now_ms,
        since_ms=since_ms,
        recent_ms=recent_ms,
        episodes=tuple(EpisodeCount(**row) for row in ask("funnel_episodes")),
        turns=tuple(
            TurnCount(
                model=row["name"],
                reason=row["reason"],
                turns=row["number"],
                versions=tuple(row["versions"]),
                producers=tuple(row["producers"]),
                server=row["server"],
            )
            for row in ask("funnel_turns")
        ),
        rewards=tuple(
            RewardCount(row["name"], row["number"], row["episodes"], row["late"], row["p50_ms"], row["p90_ms"])
            for row in ask("funnel_rewards")
        ),
        waiting=tuple(WaitingCount(**row) for row in ask("funnel_waiting")),
        next_turns=tuple(
            NextTurnCount(row["kind"], row["name"], row["turns"], row["other"]) for row in ask("funnel_next_turns")
        ),
        refused=tuple(RefusedCount(**row) for row in ask("funnel_refused")),
        lost=tuple(
            LostCount(row["counter"], row["number"], tuple(row["producers"])) for row in ask("funnel_producers")
        ),
        influence=make_influence_count(ask("funnel_influence")[0]),
        run=make_run_count(run),
        applied_hashes={row["stage"]: row["applied"] for row in in_force},
        promoted={row["stage"]: row["replay"] for row in in_force if row["replay"]},
    )


def make_run_count(row: Mapping[str, Any]) -> RunCount:
    """Return the row as a count; a column without a value has the count's default."""
    return RunCount(**_values_of(row))


def make_influence_count(row: Mapping[str, Any]) -> InfluenceCount:
    """Return the row as a count."""
    return InfluenceCount(**_values_of(row))


def _values_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in row.items() if value}
