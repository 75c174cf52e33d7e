"""Which runs there are: those of the settings, and those that have rows. Any other is refused by name."""

from collections.abc import Collection

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.schemas.errors import ConfigurationError, nearest

_TABLES = ("groups", "steps", "curriculum_states", "batches", "run_commands", "config_applied", "policy_decisions")
_STORED = " UNION DISTINCT ".join(
    f"SELECT toString(run_id) AS run FROM {table} WHERE namespace = {{namespace:String}} AND run_id != ''"
    for table in _TABLES
)


class UnknownRunError(ConfigurationError):
    """A run that neither the settings nor any row names."""


def stored_runs(client: ClickHouse, namespace: str) -> list[str]:
    """Return the runs that have rows."""
    _, rows = client.query(f"SELECT run FROM ({_STORED}) ORDER BY run", {"namespace": namespace})
    return [str(name) for (name,) in rows]


def require_run(client: ClickHouse, namespace: str, run: str, configured: Collection[str]) -> None:
    """Raise UnknownRunError for a run that is not there; a configured one may have no rows yet."""
    if not run or run in configured:
        return
    stored = stored_runs(client, namespace)
    if run not in stored:
        runs = sorted({*stored, *configured})
        raise UnknownRunError(f"no run {run!r} in namespace {namespace!r}; {nearest(run, runs)}")
