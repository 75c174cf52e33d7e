"""Time the sink against bare inserts of the same blocks, and every saved question over generated trajectories.

python -m benchmarks.analytics.run [trajectories] [rounds]

No number here is a test. The sink's share is rows per second of the whole path (Kafka to committed offsets) over those
of the same blocks, made before and inserted one after the other by the same client, alternating in one run.
"""

import asyncio
import hashlib
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.progress import track

from benchmarks.analytics.generate import NAMESPACE, expected, fill
from rollbus.consumers.clickhouse import ClickHouseSettings, SinkSettings, list_queries, migrate
from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.kafka_log import KafkaLog
from rollbus.consumers.clickhouse.origin import Row
from rollbus.consumers.clickhouse.ranges import PartitionBuffer
from rollbus.consumers.clickhouse.saved import LIMITS, bind
from rollbus.local.clickhouse import clickhouse_service
from rollbus.local.kafka import kafka_service
from rollbus.local.ports import free_port
from rollbus.local.service import ServiceProcess
from rollbus.local.settings import HOST
from rollbus.local.tether import tethered
from rollbus.schemas.codec import encode
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.topics import TOPICS
from tests.builders import make_episode

EPISODES = 10_000
"""About 190,000 rows."""
PARTITIONS = 4
POLL_S = 0.05
_ROWS = (
    "SELECT sum(rows) FROM system.parts WHERE active AND database = currentDatabase() "
    "AND table NOT IN ('sink_ranges', 'schema_migrations')"
)
SLOWEST_MS, SLOWEST_LINEAGE_MS = 1_000, 100


def main(trajectories: int, rounds: int) -> None:
    """Start a broker and a ClickHouse of their own, measure, and stop them."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        kafka = kafka_service(folder=folder / "kafka", client_port=free_port(), controller_port=free_port())
        clickhouse = clickhouse_service(folder=folder / "clickhouse", port=port)
        processes = [
            ServiceProcess(kafka, log_path=folder / "kafka.log", prefix=tethered()),
            ServiceProcess(clickhouse, log_path=folder / "clickhouse.log", prefix=tethered()),
        ]
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.wait_until_healthy()
            asyncio.run(compare_sink(kafka.address, port, rounds))
            time_questions(port, trajectories)
        finally:
            for process in processes:
                process.stop()


async def compare_sink(bootstrap_servers: str, port: int, rounds: int) -> None:
    """Print rows per second of the sink and of bare inserts, alternating, and the ratio."""
    rates: dict[str, list[float]] = {"bare": [], "sink": []}
    for number in range(rounds):
        namespace = f"bench-{number}."
        settings = sink_settings(bootstrap_servers, port, namespace)
        await fill_log(settings, number)
        blocks = await blocks_of(settings)
        rows = sum(len(block) for _, block in blocks)
        for variant in ("bare", "sink") if number % 2 else ("sink", "bare"):
            used = settings if variant == "sink" else sink_settings(bootstrap_servers, port, namespace)
            migrate(used.clickhouse)
            seconds = await timed_sink(used, rows) if variant == "sink" else timed_bare(used.clickhouse, blocks)
            rates[variant].append(rows / seconds)
            print(f"  round {number}: {variant:4} {rows / seconds:9.0f} rows/s ({rows} rows in {seconds:.2f} s)")
    ratio = statistics.median(rates["sink"]) / statistics.median(rates["bare"])
    print(f"sink {statistics.median(rates['sink']):.0f} rows/s, {ratio:.2f} × bare inserts of the same blocks")


def sink_settings(bootstrap_servers: str, port: int, namespace: str) -> SinkSettings:
    """Return a sink into a database of its own."""
    database = ClickHouseSettings(host=HOST, port=port, database=f"bench_{uuid.uuid4().hex[:8]}", timeout_s=300)
    return SinkSettings(
        kafka=KafkaConnection(bootstrap_servers=bootstrap_servers), namespace=namespace, clickhouse=database
    )


async def fill_log(settings: SinkSettings, seed: int) -> None:
    """Write episodes of four turns into the topics of a namespace."""
    servers = settings.kafka.bootstrap_servers
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    names = [
        NewTopic(topic.full_name(settings.namespace), PARTITIONS if topic.partitions == "events" else 1, 1)
        for topic in TOPICS
    ]
    await admin.create_topics(names)
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=50)
    await producer.start()
    topic = f"{settings.namespace}episode-events"
    for number in range(EPISODES):
        name = f"{seed}-{number}"
        for event in make_episode(name, turns=4):
            await producer.send(topic, encode(event), key=name.encode())
    await producer.stop()


async def blocks_of(settings: SinkSettings) -> list[tuple[str, list[Row]]]:
    """Return the inserts that a sink makes of the log, partition by partition."""
    blocks: list[tuple[str, list[Row]]] = []
    async with KafkaLog(settings.kafka, settings.namespace) as log:
        for (topic, number), span in (await log.spans(["episode-events"])).items():
            buffer = PartitionBuffer(namespace=settings.namespace, topic=topic, partition=number, start=span.begin)
            async for records in log.read((topic, number), span):
                for record in records:
                    buffer.add(record)
                if buffer.rows * PARTITIONS >= settings.max_rows and (made := buffer.cut()):
                    blocks += made.tables.items()
            if made := buffer.cut():
                blocks += made.tables.items()
    return blocks


def timed_bare(settings: ClickHouseSettings, blocks: list[tuple[str, list[Row]]]) -> float:
    """Return how long the inserts alone take."""
    client = ClickHouse(settings)
    client.query("SELECT 1")
    started = time.perf_counter()
    for table, rows in blocks:
        client.insert(table, rows)
    seconds = time.perf_counter() - started
    client.close()
    return seconds


async def timed_sink(settings: SinkSettings, rows: int) -> float:
    """Return how long a sink in a process of its own takes from its first record to the last of so many rows."""
    program = (
        "import sys; from rollbus.consumers.clickhouse import SinkSettings, run_sink; "
        "run_sink(SinkSettings.model_validate_json(sys.argv[1]))"
    )
    text = settings.model_dump_json(exclude={"clickhouse": {"password"}})
    client = ClickHouse(settings.clickhouse)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, text)
    try:
        while not client.query("SELECT count() FROM sink_ranges")[1][0][0]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)
        started = time.perf_counter() - settings.linger_ms / 1000
        while client.query(_ROWS)[1][0][0] < rows:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return time.perf_counter() - started
    finally:
        process.terminate()
        await process.wait()
        client.close()


def time_questions(port: int, trajectories: int) -> None:
    """Print the time of every saved question, the best of three, slowest first."""
    settings = ClickHouseSettings(host=HOST, port=port, database="questions", timeout_s=300)
    migrate(settings)
    client = ClickHouse(settings)
    for table in track(fill(client, trajectories), description="filling tables", transient=True):
        del table
    fates = {
        row[0] if not row[2] else row[2]: row[3]
        for row in client.query(*asked("fate_of_every_trajectory", trajectories))[1]
    }
    wanted = {fate: count for fate, count in expected(trajectories).items() if count} | {"all": trajectories}
    if fates != wanted:
        raise SystemExit(f"fates are {fates}, expected {wanted}")
    times = {query.name: best_ms(client, query.name, trajectories) for query in list_queries()}
    client.close()
    print(f"saved questions over {trajectories} trajectories, best of three:")
    for name, milliseconds in sorted(times.items(), key=lambda item: -item[1]):
        allowed = SLOWEST_LINEAGE_MS if name.startswith("lineage") else SLOWEST_MS
        print(f"  {name:28} {milliseconds:7.0f} ms{'' if milliseconds < allowed else f'  above {allowed} ms'}")


def best_ms(client: ClickHouse, name: str, trajectories: int) -> float:
    """Return the shortest of three answers."""
    sql, values = asked(name, trajectories)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        client.query(sql, values, LIMITS)
        seconds.append(time.perf_counter() - started)
    return min(seconds) * 1000


def asked(name: str, trajectories: int) -> tuple[str, dict[str, Any]]:
    """Return a question with parameters that hit something in the middle of the data."""
    query = next(query for query in list_queries() if query.name == name)
    middle = trajectories // 2 // 128 * 128
    values = {
        "namespace": NAMESPACE,
        "episode": identifier("e", middle + 25),
        "id": identifier("e", middle + 25) + ("2" if name == "lineage_of_event" else ""),
        "group": identifier("g", middle // 8 + 3),
        "step": middle // 128 + 1,
        "value": "user-77",
        "version": middle // 128,
        "replay": "replay-x.",
    }
    known = {parameter.name for parameter in query.parameters}
    return query.sql, bind(query, {key: value for key, value in values.items() if key in known})


def identifier(kind: str, number: int) -> str:
    """Return an id as `generate` makes it."""
    return hashlib.md5(f"{kind}{number}".encode(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*(given + [1_000_000, 3][len(given) :]))
