"""A namespace on the real broker, as the processes around the trainer see it."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import decode
from rollbus.schemas.limits import MAX_MESSAGE_BYTES
from rollbus.schemas.records.groups import StepOutcome, TrainingBatch
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import (
    BATCHES,
    POLICY_VERSIONS,
    RUN_LOG,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from rollbus.trainer.ledger.reading_kafka import read_all
from rollbus.trainer.process import open_backend
from rollbus.trainer.settings import BackendSettings, TrainerSettings
from rollbus.trainer.validation.settings import ValidationSettings
from tests.builders import make_group, make_member
from tests.contracts.trainer_log import as_bytes
from tests.services.streams.fixtures import stream_settings
from tests.trainer.scenario import make_batch, make_payload

PATIENCE_S = 240.0
"""Only reached where something is wrong: where thirty processes share two cores, a trainer takes a minute to start."""


class KafkaWorld:
    """Topics of one namespace; `open` first, `close` at the end."""

    def __init__(self, bootstrap_servers: str, namespace: str) -> None:
        self.connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
        self.namespace = namespace

    async def open(self) -> None:
        """Create every topic."""
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.connection.bootstrap_servers)
        await self._admin.start()
        self._topics = await ensure_topics(stream_settings(self.connection.bootstrap_servers, self.namespace))
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.connection.bootstrap_servers,
            transactional_id=f"{self.namespace}test-writer",
            max_request_size=MAX_MESSAGE_BYTES,
        )
        await self._producer.start()

    async def close(self) -> None:
        """Remove the topics, so that a session's broker stays small."""
        await self._producer.stop()
        await self._admin.delete_topics(self._topics)
        await self._admin.close()

    def log(self) -> KafkaTrainerLog:
        return KafkaTrainerLog(self.connection, namespace=self.namespace, run_id="main", model="agent")

    async def append(self, topic: Topic, key: str, *records: Any) -> Sequence[Location]:
        name = topic.full_name(self.namespace)
        async with self._producer.transaction():
            waiting = [await self._producer.send(name, as_bytes(record), key=key.encode()) for record in records]
            sent = [await future for future in waiting]
        return [Location(topic=name, partition=metadata.partition, offset=metadata.offset) for metadata in sent]

    async def expire(self, location: Location) -> None:
        partition = TopicPartition(location.topic, location.partition)
        await self._admin.delete_records({partition: RecordsToDelete(before_offset=location.offset + 1)})

    async def records(self, topic: Topic) -> Sequence[Any]:
        return [decode(frame.value) for frame in await read_all(self.connection, topic.full_name(self.namespace))]


class TrainerWorld(KafkaWorld):
    """A namespace, and trainer processes in it."""

    def __init__(self, bootstrap_servers: str, namespace: str, backend: BackendSettings) -> None:
        super().__init__(bootstrap_servers, namespace)
        self.backend = backend
        self.validation: ValidationSettings | None = None
        self.max_off_policy_steps = 4
        self.processes: list[asyncio.subprocess.Process] = []
        self.batches: list[TrainingBatch] = []

    def settings(self) -> TrainerSettings:
        return TrainerSettings(
            kafka=self.connection,
            namespace=self.namespace,
            backend=self.backend,
            validation=self.validation,
            retry_pauses_s=(0.2, 0.5, 1.0),
            max_off_policy_steps=self.max_off_policy_steps,
            alarm=None,  # the payload was sampled by nobody, so its log-probs are not a model's
            most_difference=0.0,
        )

    async def close(self) -> None:
        """End what was started, and remove the topics."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            if process.stderr is not None and not process.stderr.at_eof():
                print((await process.communicate())[1].decode())  # shown where the test failed
        await super().close()

    async def start(self, die_at: str = "") -> asyncio.subprocess.Process:
        """Start a trainer process."""
        arguments = ("-m", "tests.services.trainer.process", self.settings().model_dump_json(), die_at)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        self.processes.append(process)
        return process

    async def add_batches(self, count: int) -> None:
        """Write batches of one group of three."""
        for number in range(len(self.batches), len(self.batches) + count):
            name = f"{self.namespace}b{number}"
            payloads = [make_payload(f"{name}-{index}", seed=10 * number + index) for index in range(3)]
            locations = await self.append(TRAJECTORIES, f"hint-{number}", *payloads)
            members = tuple(
                make_member(f"{name}-{index}", reward, advantage=reward - 2 / 3, location=location)
                for index, (reward, location) in enumerate(zip((0.0, 1.0, 1.0), locations, strict=True))
            )
            self.batches.append(make_batch(number, [make_group(name, (0.0, 1.0, 1.0), members=members)]))
            await self.append(BATCHES, "main", self.batches[-1])

    async def steps(self) -> list[StepCompleted]:
        return [record for record in await self.records(TRAINING_STEPS) if isinstance(record, StepCompleted)]

    async def wait_for_steps(self, count: int) -> None:
        """Wait until so many steps are closed, and all that was committed with them can be read."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.visible_steps() < count:  # noqa: ASYNC110 - another process writes them
                await asyncio.sleep(0.1)

    async def visible_steps(self) -> int:
        """Steps of which every record can be read: a commit's markers reach one topic after the other."""
        outcomes = [record for record in await self.records(RUN_LOG) if isinstance(record, StepOutcome)]
        versions = [record for record in await self.records(POLICY_VERSIONS) if record.step is not None]
        return min(len(await self.steps()), len(outcomes), len(versions))

    async def check(self) -> None:
        """Each batch in one step with its outcome; each version the child of the one before, and no others."""
        steps = await self.check_log()
        async with open_backend(self.settings()) as backend:
            versions = await backend.versions()
        assert versions.head == versions.serving == steps[-1].policy_version
        stored = {version.version for version in versions.known if version.batch_hash in self.hashes}
        assert stored == {step.policy_version for step in steps}

    async def check_log(self) -> list[StepCompleted]:
        """Return the steps: each batch in one, with its outcome; each version the child of the one before."""
        steps = await self.steps()
        assert [(step.step, step.batch_hash) for step in steps] == [
            (number, batch.batch_hash) for number, batch in enumerate(self.batches, 1)
        ]
        outcomes = [record.batch_number for record in await self.records(RUN_LOG) if isinstance(record, StepOutcome)]
        assert outcomes == list(range(len(self.batches)))
        version_records = {
            record.version: record for record in await self.records(POLICY_VERSIONS) if record.batch_hash in self.hashes
        }
        assert [version_records[step.policy_version].parent for step in steps] == [step.base_version for step in steps]
        assert set(version_records) == {step.policy_version for step in steps}
        return steps

    @property
    def hashes(self) -> set[str]:
        """The batches' hashes."""
        return {batch.batch_hash for batch in self.batches}


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Return exit status and what it wrote."""
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate()
    return process.returncode or 0, errors.decode()
