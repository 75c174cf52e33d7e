"""Every place where prompts, ids, log-probs or labels may rest, and what becomes of a person's in each.

`rollbus forget` prints one line a place: removed, expires by a time, or cannot, and why. A test compares the rows with
the table of topics, the tables of ClickHouse and the stages' changelogs, so a new place cannot be left out. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rollbus.schemas.topics import TOPICS
from rollbus.terminal.output import format_count

Outcome = Literal["removed", "expires", "cannot"]
IDS = "ids and numbers"
ALL = "texts, token ids, log-probs, labels"
TOPIC_HOLDS = {
    "episode-events": ALL,
    "aliases": "aliases, comments",
    "trajectories": ALL,
    "scores": "ids, rewards, labels, errors of reward functions, hints of judges",
    "closed-groups": IDS,
    "resample-requests": "the first messages of a conversation",
    "run-log": IDS,
    "curriculum": IDS,
    "batches": IDS,
    "training-steps": IDS,
    "policy-versions": IDS,
    "delivery-log": "ids, rewards and an operator's reasons",
    "policy-decisions": IDS,
    "evaluations": IDS,
    "replays": IDS,
    "exclusions": IDS,
    "data-sets": "ids, and the names of data sets",
    "producer-reports": "counters",
    "drops": "ids; of a failed score the error text of its reward function",
    "dead-letters": "bytes as they came, with their texts",
}
ROLL_HOURS = 168
"""Kafka's default `segment.ms`: retention removes whole segments, so the newest record of one decides."""
COMPACTION_HOURS = 25
"""The changelogs' own segments of an hour and `max.compaction.lag.ms` of a day."""
OLD_PARTS_MINUTES = 14
"""ClickHouse's defaults: `old_parts_lifetime` of 8 minutes, and up to 310 s until it looks for what is that old:
`max_cleanup_delay_period`, and a random part of 10 s."""
HOUR_MS, MINUTE_MS = 3_600_000, 60_000


@dataclass(frozen=True, slots=True)
class DataPlace:
    """What becomes of a person's data in one place."""

    name: str
    holds: str
    outcome: Outcome
    why: str
    """How it was removed, or why it cannot be; for what expires, the time is `by_ms`."""
    by_ms: int | None = None


ELSEWHERE = (
    DataPlace("art-server's journal", IDS, "cannot", "after a crash it tells which batch was trained"),
    DataPlace(
        "art-server's batch on disk", "token ids, log-probs, hints", "removed", "after each update, and at each start"
    ),
    DataPlace("dead letters that name no episode", "bytes as they came", "cannot", "nothing says whose they are"),
    DataPlace("memory of workers, trainer, art-server", ALL, "removed", "with the episode, the batch or the request"),
    DataPlace(
        "spool folders of producers", ALL, "cannot", "they are on the agents' machines, until they are delivered"
    ),
    DataPlace("folders of import and ingest", ALL, "removed", "trace by trace, once the broker has it"),
    DataPlace("logs", "ids, texts of errors", "cannot", "rollbus does not search them; remove them as they age"),
    DataPlace("exports, outputs of finetune runs", ALL, "cannot", "rollbus does not know the copies; delete them"),
    DataPlace(
        "archives that `archive: url:` does not name", ALL, "cannot", "rollbus does not know them; name one at a time"
    ),
    DataPlace("ClickHouse backups, copies of disks", ALL, "cannot", "rollbus does not make them, nor know them"),
    DataPlace("W&B, MLflow, Langfuse, OpenPipe", "what was logged there", "cannot", "other services; ask them"),
)


def find_places(
    *,
    namespace: str,
    retention_hours: int,
    changelogs: Mapping[str, int],
    replays: Iterable[str],
    rows: str | None,
    trained_steps: int,
    now_ms: int,
    archived: tuple[str, str] | None = None,
    restored: Iterable[str] = (),
) -> Iterator[DataPlace]:
    """Yield every place.

    `changelogs` says by name how many milliseconds of stream time the stage keeps what it cannot assign to an episode;
    `rows` is what ClickHouse had, None if it was not asked; `trained_steps` used the data; `archived` is the archive's
    place and what it had; `restored` are namespaces that an archive was restored into.
    """
    expiry_ms = now_ms + (retention_hours + ROLL_HOURS) * HOUR_MS
    for topic in TOPICS:
        name, holds = f"Kafka {topic.full_name(namespace)}", TOPIC_HOLDS[topic.name]
        if topic.retention == "time":
            yield DataPlace(name, holds, "expires", "retention; Kafka removes no single record", expiry_ms)
        else:
            yield DataPlace(name, holds, "cannot", "the ledger keeps for ever what was trained and why not")
    for changelog, kept_ms in changelogs.items():
        dropped = "after the late horizon" if kept_ms else "at once"
        why = f"while a worker runs: the stage drops its state {dropped}, compaction the bytes"
        by_ms = now_ms + kept_ms + COMPACTION_HOURS * HOUR_MS
        yield DataPlace(f"Kafka {changelog}", f"what is open: {ALL}", "expires", why, by_ms)
    for replay in replays:
        why = f"it keeps its copy until `rollbus replay delete {replay}`"
        yield DataPlace(f"Kafka, replay {replay}", ALL, "cannot", why)
    for other in restored:
        name = other.removeprefix("restored-").partition(".")[0]
        yield DataPlace(f"Kafka, {other}*", ALL, "cannot", f"it keeps its copy until `rollbus archive discard {name}`")
    if archived is not None:
        why = f"{archived[1]}; a bucket that keeps versions has the old files until it deletes them"
        yield DataPlace(f"the archive {archived[0]}", ALL, "removed", why)
    if rows is None:
        yield DataPlace("ClickHouse", ALL, "cannot", "--no-clickhouse left it out")
    else:
        yield DataPlace("ClickHouse's tables", ALL, "removed", f"{rows}; groups, steps, drops keep ids")
        parts_ms = now_ms + OLD_PARTS_MINUTES * MINUTE_MS
        yield DataPlace(
            "ClickHouse's old parts on disk", ALL, "expires", "the server deletes what it replaced", parts_ms
        )
    if trained_steps:
        why = f"{format_count(trained_steps, 'step')} learned from it; `rollbus policy rollback` goes back"
        yield DataPlace("checkpoints", "weights", "cannot", why)
    yield from ELSEWHERE
