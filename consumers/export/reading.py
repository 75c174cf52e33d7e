"""ClickHouse → the selected trajectories with their conversations and tokens, a few hundred at a time.

Excluded episodes, and those with an excluded root episode, are left out before any filter. The exclusions are read
first, and the offset up to which the sink had written them goes into the manifest.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.export.conversations import StoredTurn
from rollbus.schemas.errors import ConfigurationError, RejectedError, nearest

TASKS_SHOWN = 5
"""Of those that a filter could name, where it matches nothing."""
BLOCK = 200
"""Trajectories whose payload is in memory at once."""

_EXCLUDED = "SELECT episode_id FROM excluded_episodes(namespace = {namespace:String})"

_MEMBERS = """
    SELECT trajectory_id FROM data_set_members
    WHERE namespace = {namespace:String} AND data_set = {data_set:String}
    GROUP BY trajectory_id
    HAVING argMax(is_member, (changed_at, kafka_offset))"""

_SELECTION = f"""
SELECT
    found.trajectory_id AS trajectory_id, found.episode_id AS episode_id, found.root_episode_id AS root_episode_id,
    found.task AS task, found.example_id AS example_id, found.group_hint AS group_hint, found.agent AS agent,
    found.producer AS producer, found.labels AS labels, found.started_at AS started_at, found.ended_at AS ended_at,
    found.stop_reason AS stop_reason, found.turns AS turns, found.tokens AS tokens,
    found.sampled_tokens AS sampled_tokens, found.min_policy_version AS min_policy_version,
    found.max_policy_version AS policy_version, found.trainable AS trainable,
    score.value AS reward, score.components AS components, score.model AS model,
    fates.fate AS fate, fates.step AS step, fates.reason AS reason
FROM (SELECT *, trajectory_key FROM trajectories FINAL WHERE namespace = {{namespace:String}}) AS found
LEFT JOIN latest_scores(namespace = {{namespace:String}}) AS score ON score.trajectory_key = found.trajectory_key
LEFT JOIN
(
    SELECT trajectory_key, fate, step, reason
    FROM trajectory_fates(namespace = {{namespace:String}}, run = {{run:String}})
) AS fates ON fates.trajectory_key = found.trajectory_key
WHERE found.episode_id NOT IN ({_EXCLUDED}) AND found.root_episode_id NOT IN ({_EXCLUDED})"""
"""A filter can name these columns."""


@dataclass(frozen=True, slots=True)
class TokenHistory:
    """One token sequence as it can be trained."""

    token_ids: list[int]
    logprobs: list[float]
    span_starts: list[int]
    span_ends: list[int]
    span_policy_versions: list[int]


@dataclass(frozen=True, slots=True)
class Selected:
    """One trajectory with its payload."""

    facts: Mapping[str, Any]
    """The columns of `_SELECTION`."""
    turns: tuple[StoredTurn, ...] = ()
    tools: str = ""
    """JSON of the tool schemas that its turns were offered; the last ones, if they differ."""
    histories: tuple[TokenHistory, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ExclusionCount:
    """How many episodes are excluded, and how much of the log the sink had read for that."""

    episodes: int
    read_to: Mapping[str, int]
    """topic:partition → the next offset that the sink had not written."""


def read_exclusions(client: ClickHouse, namespace: str) -> ExclusionCount:
    """Return how many episodes are excluded, and up to which offsets that is known."""
    values = {"namespace": namespace}
    _, rows = client.query(f"SELECT count() FROM ({_EXCLUDED})", values)
    _, places = client.query(
        "SELECT kafka_topic, kafka_partition, max(next_offset) FROM sink_ranges WHERE namespace = {namespace:String} "
        "AND kafka_topic IN ('episode-events', 'exclusions') GROUP BY ALL ORDER BY ALL",
        values,
    )
    return ExclusionCount(int(rows[0][0]), {f"{topic}:{number}": int(offset) for topic, number, offset in places})


def _reason_of(error: RejectedError) -> str:
    """Return ClickHouse's own reason, without the statement around the filter."""
    _, _, reason = str(error).rpartition("DB::Exception: ")
    return re.split(r"\.? In query |\.? \([A-Z_]+\) \(version |: failed at position ", reason)[0]


def select_trajectories(
    client: ClickHouse, namespace: str, run: str, where: str, limit: int | None, data_set: str = ""
) -> list[dict[str, Any]]:
    """Return the facts of the trajectories that pass a filter; attempts at one problem are next to each other.

    With a data set, they are those of its members; raises ConfigurationError if it has none, and for a filter that is
    not a condition over the columns of a trajectory.
    """
    values = {"namespace": namespace, "run": run, "data_set": data_set}
    if data_set and not client.query(f"{_MEMBERS} LIMIT 1", values)[1]:
        raise ConfigurationError(
            f"data set {data_set!r} has no members; {nearest(data_set, _data_sets(client, values))}"
        )
    members = f"trajectory_id IN ({_MEMBERS}) AND " if data_set else ""
    order = "ORDER BY group_hint, started_at, trajectory_id" + (f" LIMIT {limit}" if limit is not None else "")
    try:
        names, rows = client.query(f"SELECT * FROM ({_SELECTION}) WHERE {members}({where or 'true'}) {order}", values)
    except RejectedError as error:
        if not where:
            raise
        _, columns = client.query(f"DESCRIBE ({_SELECTION})", values)
        raise ConfigurationError(
            f"--where {where!r} is not a condition that ClickHouse takes: {_reason_of(error)}; write one over the "
            f"columns {', '.join(column[0] for column in columns)}"
        ) from error
    return [dict(zip(names, row, strict=True)) for row in rows]


def describe_unfiltered(client: ClickHouse, namespace: str, run: str, data_set: str = "") -> str:
    """Return what there is to choose from, in words, for a filter that matches none of it."""
    values = {"namespace": namespace, "run": run, "data_set": data_set}
    members = f"trajectory_id IN ({_MEMBERS})" if data_set else "true"
    sql = (
        f"SELECT count(), countIf(reward IS NULL), min(reward), max(reward), groupUniqArray({TASKS_SHOWN})(task) "
        f"FROM ({_SELECTION}) WHERE {members}"
    )
    ((stored, unscored, least, most, tasks),) = client.query(sql, values)[1]
    where = f"data set {data_set!r}" if data_set else f"namespace {namespace!r}"
    if not stored:
        return f"{where} has no trajectory that is not excluded"
    rewards = "no rewards" if unscored == stored else f"rewards from {least:g} to {most:g}, {unscored} without one"
    return f"{where} has {stored}: tasks {', '.join(sorted(task or '(none)' for task in tasks))}; {rewards}"


def _data_sets(client: ClickHouse, values: Mapping[str, str]) -> list[str]:
    sql = "SELECT DISTINCT data_set FROM data_set_members WHERE namespace = {namespace:String}"
    return [str(name) for (name,) in client.query(sql, values)[1]]


def read_payloads(
    client: ClickHouse, namespace: str, selection: list[dict[str, Any]], *, tokens: bool = False
) -> Iterator[Selected]:
    """Yield the selected trajectories with their turns, and with their tokens if asked for."""
    for start in range(0, len(selection), BLOCK):
        block = selection[start : start + BLOCK]
        turns = _read_turns(client, namespace, [facts["episode_id"] for facts in block])
        histories = _read_histories(client, namespace, [facts["trajectory_id"] for facts in block]) if tokens else {}
        for facts in block:
            stored, tools = turns.get(facts["episode_id"], ([], ""))
            yield Selected(facts, tuple(stored), tools, tuple(histories.get(facts["trajectory_id"], ())))


def _read_turns(client: ClickHouse, namespace: str, episodes: list[str]) -> dict[str, tuple[list[StoredTurn], str]]:
    """Return the turns by episode, in the order of assembly: each writer's in its sequence, merged by event time."""
    _, rows = client.query(
        "SELECT episode_id, event_id, writer_id, prefix_count, prefix_hash, added_messages, completion, tools_hash, "
        "tools, ifNull(untrainable_reason, '') FROM turns FINAL "
        "WHERE namespace = {namespace:String} AND episode_id IN {episodes:Array(String)} "
        "ORDER BY episode_id, max(occurred_at) OVER (PARTITION BY episode_id, writer_id, "
        "if(sequence < 0, event_id, '') ORDER BY sequence), writer_id, sequence",
        {"namespace": namespace, "episodes": episodes},
    )
    tools_by_hash = {(row[0], row[-3]): row[-2] for row in rows if row[-2]}
    turns: dict[str, tuple[list[StoredTurn], str]] = {}
    for episode, event_id, writer, count, prefix_hash, added, completion, tools_hash, _, verdict in rows:
        stored, earlier_tools = turns.get(episode, ([], ""))
        tools = tools_by_hash.get((episode, tools_hash), "")
        stored.append(
            StoredTurn(
                event_id=event_id,
                writer_id=writer,
                prefix_count=count,
                prefix_hash=prefix_hash,
                added_messages=tuple(json.loads(added)),
                completion=json.loads(completion),
                tools=tools,
                verdict=verdict,
            )
        )
        turns[episode] = (stored, tools or earlier_tools)
    return turns


def _read_histories(client: ClickHouse, namespace: str, trajectories: list[str]) -> dict[str, list[TokenHistory]]:
    _, rows = client.query(
        "SELECT trajectory_id, token_ids, logprobs, span_starts, span_ends, span_policy_versions FROM histories FINAL "
        "WHERE namespace = {namespace:String} AND trajectory_id IN {ids:Array(String)} ORDER BY trajectory_id, history",
        {"namespace": namespace, "ids": trajectories},
    )
    histories: dict[str, list[TokenHistory]] = {}
    for trajectory, *columns in rows:
        histories.setdefault(trajectory, []).append(TokenHistory(*map(list, columns)))
    return histories
