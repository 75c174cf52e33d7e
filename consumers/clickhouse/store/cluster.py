"""The statements of one server → those of a cluster: each table replicated as `<name>_local`, and spread by its name.

    CREATE TABLE t … ReplacingMergeTree   →   t_local ON CLUSTER, ReplicatedReplacingMergeTree
                                              t       ON CLUSTER, Distributed over t_local

Who inserts and asks uses `t` as on one server. Rows of one episode are on one shard; a table without episodes is spread
by its order, so that two deliveries of a row always meet on one shard and the first one wins. Pure.
"""

import re

from rollbus.schemas.errors import ConfigurationError

SUFFIX = "_local"
INSERT_SETTINGS = {"distributed_foreground_insert": 1}
"""The answer means that every shard has written its rows. The token of an insert goes to the shards with them."""
QUERY_SETTINGS = {"distributed_product_mode": "global"}
"""A table within a question is read from all shards, as on one server."""

_CREATE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\n(\(\n.*?\n\))\nENGINE = (\w+MergeTree)(.*)", re.DOTALL)
_VIEW = re.compile(r"CREATE OR REPLACE VIEW (\w+) AS\b")
_ALTER = re.compile(r"ALTER TABLE (\w+)\s+(.*)", re.DOTALL)
_ORDER = re.compile(r"\nORDER BY \(?([^\n()]+)\)?")
_COLUMNS = re.compile(r"(ADD|DROP|MODIFY|RENAME|COMMENT) COLUMN\b")


def spread(statement: str, cluster: str) -> tuple[str, ...]:
    """Return the statements that do on every server of the cluster what one does on a single server."""
    where = f"ON CLUSTER {cluster}"
    if create := _CREATE.fullmatch(statement):
        name, columns, engine, rest = create.groups()
        arguments, _, tail = rest.partition("\n")
        local = _replicate_engine(engine, arguments) + "\n" + tail.replace("non_replicated_dedup", "replicated_dedup")
        key = _sharding_key(columns, tail)
        return (
            f"CREATE TABLE IF NOT EXISTS {name}{SUFFIX} {where}\n{columns}\nENGINE = {local}",
            f"CREATE TABLE IF NOT EXISTS {name} {where} AS {name}{SUFFIX}\n"
            f"ENGINE = Distributed({cluster}, currentDatabase(), {name}{SUFFIX}, {key})",
        )
    if view := _VIEW.match(statement):
        return (f"CREATE OR REPLACE VIEW {view[1]} {where} AS{statement[view.end() :]}",)
    if alter := _ALTER.fullmatch(statement):
        stored = f"ALTER TABLE {alter[1]}{SUFFIX} {where} {alter[2]}"
        return (stored, f"ALTER TABLE {alter[1]} {where} {alter[2]}") if _COLUMNS.match(alter[2]) else (stored,)
    first = statement.partition("\n")[0]
    raise ConfigurationError(f"a migration cannot be run on a cluster: {first!r}; add its kind to store/cluster.py")


def stored_table(table: str, cluster: str | None) -> str:
    """Return what a statement that changes rows names: the table itself, or its parts on every server."""
    return f"{table}{SUFFIX} ON CLUSTER {cluster}" if cluster else table


def _replicate_engine(engine: str, arguments: str) -> str:
    """Return the engine whose parts are copied between the replicas of a shard, which the server's macros name."""
    inner = arguments.strip().removeprefix("(").removesuffix(")")
    place = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"
    return f"Replicated{engine}({', '.join(filter(None, (place, inner)))})"


def _sharding_key(columns: str, tail: str) -> str:
    if re.search(r"\n    episode_id String", columns):
        return "cityHash64(episode_id)"
    order = _ORDER.search("\n" + tail)
    assert order is not None, "every table has an order"
    # without what the servers derive from other columns: a block that comes to be spread has no value of it yet
    return f"cityHash64({order[1].replace('trajectory_key, ', '')})"
