"""A database as a run of some weeks leaves it: the benchmark's rows, with rewards that rise and steps that differ."""

from collections.abc import Iterator

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from tests.trajectories import generate, shape

TRAJECTORIES = 12_800
LONG = 20_001
"""Steps of a run that went on for long: more than one answer may have rows."""
STEPS = 99
"""Steps of 128 trajectories; the newest hundredth of the trajectories is pending."""

_REWARD = "toFloat64(if(g % 10 < 3, g % 20 < 3, cityHash64(i) % 1000 < 250 + 600 * (1 - exp(-s / 40))))"
_METRICS = (
    "map('loss', 0.12 * exp(-s / 45) + 0.01 * sin(s), 'entropy', 0.35 + 1.1 * exp(-s / 60) + 0.02 * sin(s * 1.7), "
    "'grad_norm', 0.4 + 0.3 * exp(-s / 30) + 0.08 * sin(s * 2.3), 'reference_kl', 0.09 * (1 - exp(-s / 50)), "
    "'mismatch_kl', 0.002 + 0.001 * abs(sin(s * 3.1)), 'clip_fraction', 0.03 + 0.02 * abs(sin(s)), "
    "'reward_mean', 0.5)"
)
_QUESTION_TEXT = (
    "['The board is X _ O, _ X _, _ _ _. You play O. Where?', 'You lost that square. Where now?', "
    "'It is your move again: _ _ _, X O _, _ _ X.'][1 + cityHash64(i) % 3]"
)
_ANSWERS = "['I take the lower right square: 9.', 'The centre is free, so 5.', 'I block the row with 3.'][1 + i % 3]"
_REPLACEMENTS = {
    shape._REWARD: _REWARD,
    "map('loss', 0.1, 'entropy', 1 + 1 / s, 'grad_norm', 0.5, 'kl', 0.01, 'clip_fraction', 0.1)": _METRICS,
    f'"user","content":"\', {shape._TEXT},': f'"user","content":"\', {_QUESTION_TEXT},',
    shape._TEXT: _ANSWERS,
    "if(g % 10 < 3, 1, 0.5)": "if(g % 10 < 3, g % 20 < 3, 0.25 + 0.6 * (1 - exp(-s / 40)))",
}


def fill(settings: ClickHouseSettings, namespace: str = "rollbus.") -> None:
    """Make the tables and their rows."""
    migrate(settings)
    client = ClickHouse(settings)
    try:
        for statement in statements(namespace):
            client.command(statement)
    finally:
        client.close()


def fill_long(settings: ClickHouseSettings, namespace: str = "rollbus.") -> None:
    """Make a run of very many steps, each with a version that scored once."""
    migrate(settings)
    at = "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalMinute(number)"
    shared = f"'{namespace}', 'x', 0, number, {at}"
    origin = "namespace, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp"
    client = ClickHouse(settings)
    try:
        client.command(
            f"INSERT INTO steps ({origin}, run_id, step, state, model, base_version, policy_version, metrics, "
            f"started_at, ended_at) SELECT {shared}, 'main', number + 1, 'completed', 'agent', number, number + 1, "
            f"map('loss', if(number = 12345, 9, 0.5)), {at}, {at} FROM numbers({LONG})"
        )
        client.command(
            f"INSERT INTO scores ({origin}, trajectory_id, model, max_policy_version, value, first_seen_ms) "
            f"SELECT {shared}, toString(number), 'agent', number, number / {LONG}, 1767225600000 + number * 60000 "
            f"FROM numbers({LONG})"
        )
        client.command(
            f"INSERT INTO policy_versions ({origin}, model, version, state, changed_at) "
            f"SELECT {shared}, 'agent', number, 'serving', {at} FROM numbers({LONG})"
        )
    finally:
        client.close()


def fill_broken(settings: ClickHouseSettings, namespace: str = "rollbus.") -> None:
    """Make two runs of twenty steps; in `main`, step 8 has a loss that is NaN and step 14 one that is infinite."""
    migrate(settings)
    client = ClickHouse(settings)
    at = "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalMinute(number)"
    loss = "if(run = 'main' AND number IN (7, 13), if(number = 7, nan, inf), 1 / (number + 1))"
    try:
        client.command(
            "INSERT INTO steps (namespace, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, run_id, step, "
            "state, model, base_version, policy_version, metrics, started_at, ended_at) "
            f"SELECT '{namespace}', 'training-steps', 0, number, {at}, run, number + 1, 'completed', run, number, "
            f"number + 1, map('loss', {loss}), {at}, {at} FROM numbers(20) ARRAY JOIN ['main', 'other'] AS run"
        )
    finally:
        client.close()


def statements(namespace: str) -> Iterator[str]:
    """Yield one INSERT per table."""
    for topic, tables in generate._TOPICS.items():
        for table in tables:
            if table in {"sink_ranges", "dead_letters"}:
                continue  # below, as a page with something to look at has them
            statement = generate.insert(table, topic, 0, TRAJECTORIES, TRAJECTORIES, namespace)
            for original, replacement in _REPLACEMENTS.items():
                statement = statement.replace(original, replacement)
            yield statement
    yield (
        "INSERT INTO sink_ranges (namespace, kafka_topic, kafka_partition, from_offset, last_offset, next_offset, "
        "end_offset, records, stored, rows, dead_letters, bytes, digest) "
        f"SELECT '{namespace}', topic, partition, n * 500, n * 500 + 499, n * 500 + 500, "
        "if(topic = 'episode-events' AND n = 9, 5642, n * 500 + 500), 500, 500, 500, 0, 50000, 'd' FROM numbers(10) "
        "ARRAY JOIN [number] AS n ARRAY JOIN ['episode-events', 'trajectories', 'scores', 'run-log'] AS topic "
        "ARRAY JOIN [0, 1] AS partition"
    )
    yield (
        "INSERT INTO dead_letters (namespace, stage, topic, partition, offset, timestamp, key, value, error_class, "
        "message, attempt, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp) "
        f"SELECT '{namespace}', if(number % 3 = 0, 'scoring', 'assembly'), 'episode-events', 0, number, "
        "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalSecond(number), 'key', 'value', "
        "if(number % 3 = 0, 'RewardError', 'DecodeError'), 'byte 0 is 0x7B, which begins no known frame', 1, "
        "'dead-letters', 0, number, toDateTime64('2026-01-01 00:00:00', 3, 'UTC') FROM numbers(7)"
    )
    yield (
        "INSERT INTO run_commands (namespace, run_id, command, command_id, kafka_topic, kafka_partition, kafka_offset, "
        f"kafka_timestamp) SELECT '{namespace}', 'main', ['pause', 'resume'][number + 1], toString(number), 'run-log', "
        "0, 90000 + number, toDateTime64('2026-01-01 01:00:00', 3, 'UTC') + toIntervalMinute(number * 20) "
        "FROM numbers(2)"
    )
    yield (
        "INSERT INTO data_set_members (namespace, data_set, trajectory_id, episode_id, is_member, changed_at, "
        "kafka_topic, kafka_partition, kafka_offset, kafka_timestamp) "
        "SELECT namespace, 'gold', trajectory_id, episode_id, true, "
        "now64(3), 'data-sets', 0, kafka_offset, now64(3) FROM trajectories WHERE kafka_offset < 3"
    )
    yield (
        "INSERT INTO policy_decisions (namespace, model, run_id, number, action, version, serving, canary, share, "
        "frozen, reason, detail, numbers, decided_at, config_hash, kafka_topic, kafka_partition, kafka_offset, "
        "kafka_timestamp) SELECT "
        f"'{namespace}', 'agent', 'main', number + 1, ['canary', 'quarantine'][number + 1], 98, 97, "
        "if(number = 0, 98, NULL), if(number = 0, 0.05, 0), false, ['newest_candidate', 'worse:reward'][number + 1], "
        "'', if(number = 0, CAST(map(), 'Map(String, Float64)'), "
        "map('reward.effect', -0.0612, 'reward.low', -0.1, 'reward.high', -0.02, "
        "'reward.canary_episodes', 312, 'reward.serving_episodes', 9800)), "
        "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + toIntervalSecond(number), 'c', "
        "'policy-decisions', 0, number, toDateTime64('2026-01-01 00:00:00', 3, 'UTC') FROM numbers(2)"
    )
