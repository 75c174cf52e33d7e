"""The trainer's log on a real broker keeps to the same contract as the one in memory."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from rollbus.nemo.bus.kafka import KafkaBus
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, DataLossError, FencedError
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.topics import BATCHES, DEAD_LETTERS, EXCLUSIONS, TRAINING_STEPS, TRAJECTORIES
from rollbus.trainer.ledger.batch_positions_kafka import batch_positions, place_of_batches
from rollbus.trainer.ledger.log import ReceivedBatch
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from tests.builders import make_excluded, make_step
from tests.contracts.trainer_log import WAIT_S, TrainerLogContract, started_step
from tests.services.streams.fixtures import commit_offsets
from tests.services.trainer.kafka import KafkaWorld
from tests.trainer.scenario import make_batch, make_payload

pytestmark = pytest.mark.services


class TestKafkaLog(TrainerLogContract):
    """The contract on `KafkaTrainerLog`, and what only a broker has."""

    @pytest.fixture
    async def world(self, kafka: str, namespace: str) -> AsyncIterator[KafkaWorld]:
        world = KafkaWorld(kafka, namespace)
        await world.open()
        yield world
        await world.close()

    @pytest.mark.parametrize("with_offset", [False, True])
    async def test_a_trainer_fenced_between_its_records_reports_it(
        self, world: KafkaWorld, monkeypatch: pytest.MonkeyPatch, with_offset: bool
    ) -> None:
        await world.append(BATCHES, "main", make_batch(0, []))
        older, newer, send, sent = world.log(), world.log(), AIOKafkaProducer.send, list[object]()
        await older.open()
        received = await older.next_batch(WAIT_S)
        assert received is not None
        await newer.open()

        async def send_late(producer: AIOKafkaProducer, *record: Any, **options: Any) -> Any:
            sent.append(record)
            while len(sent) > 1 and not producer._txn_manager.is_fatal_error():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return await send(producer, *record, **options)

        monkeypatch.setattr(AIOKafkaProducer, "send", send_late)
        with pytest.raises(FencedError):
            await older.publish(
                (started_step(), started_step()), next_offset=received.next_offset if with_offset else None
            )
        await older.close()
        await newer.close()

    async def test_a_batch_of_a_transaction_that_is_still_open_can_still_come(self, world: KafkaWorld) -> None:
        await world.append(BATCHES, "main", make_batch(0, []))
        log = world.log()
        await log.open()
        assert await log.next_batch(WAIT_S) is not None
        worker = AIOKafkaProducer(
            bootstrap_servers=world.connection.bootstrap_servers, transactional_id=f"{world.namespace}worker"
        )
        async with worker, worker.transaction():
            await worker.send_and_wait(BATCHES.full_name(world.namespace), encode(make_batch(1, [])), key=b"main")
            assert await log.next_batch(0.5) is None
            assert not await log.at_end()
        assert await log.next_batch(WAIT_S) is not None
        await log.close()

    async def test_the_offset_is_sent_once_the_broker_has_the_records(
        self, world: KafkaWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await world.append(BATCHES, "main", make_batch(0, []))
        log, send, offsets = world.log(), AIOKafkaProducer.send, AIOKafkaProducer.send_offsets_to_transaction
        await log.open()
        received = await log.next_batch(WAIT_S)
        assert received is not None
        sent: list[asyncio.Future[Any]] = []
        there: list[list[bool]] = []

        async def note_and_send(producer: AIOKafkaProducer, *record: Any, **options: Any) -> Any:
            sent.append(await send(producer, *record, **options))
            return sent[-1]

        async def after(producer: AIOKafkaProducer, *given: Any) -> Any:
            there.append([future.done() for future in sent])
            return await offsets(producer, *given)

        monkeypatch.setattr(AIOKafkaProducer, "send", note_and_send)
        monkeypatch.setattr(AIOKafkaProducer, "send_offsets_to_transaction", after)
        await log.publish((started_step(), started_step()), next_offset=received.next_offset)
        assert there == [[True, True]]
        await log.close()

    async def test_a_large_trajectory_is_fetched(self, world: KafkaWorld) -> None:
        large = make_payload("large", labels={"text": "x" * 20_000_000})
        small = [make_payload(f"t{number}") for number in range(3)]
        locations = await world.append(TRAJECTORIES, "hint", small[0], large, *small[1:])
        log = world.log()
        await log.open()
        payload_by_location = await log.fetch(locations)
        assert [payload_by_location[location] for location in locations] == [small[0], large, *small[1:]]
        await log.close()

    async def test_a_torn_ledger_stops_readers_at_its_unreadable_record(self, world: KafkaWorld) -> None:
        whole = started_step().record
        await world.append(TRAINING_STEPS, "main", whole, encode(whole)[:-3])
        log, run = world.log(), KafkaBus(world.connection, world.namespace)
        await run.open()
        for reading in (log.open, log.read_ledger, run.catch_up):
            with pytest.raises(DataLossError, match=r"at offset 1 of .*training-steps: StepStarted: .*update rollbus"):
                await reading()
        await run.close()
        await log.close()

    async def test_bytes_that_are_not_a_batch_become_a_small_dead_letter(self, world: KafkaWorld) -> None:
        large = b"\xc3\x01" + b"eight by" + random.Random(1).randbytes(1_500_000)
        await world.append(BATCHES, "main", large, b"\x00 not ours", make_batch(0, []))
        log = world.log()
        await log.open()
        for _ in range(2):  # a look ahead leaves all of it where it stands
            assert await log.next_batch(WAIT_S, skip_unreadable=False) is None
        assert await log.next_batch(WAIT_S) is not None
        cut, whole = await world.records(DEAD_LETTERS)
        assert isinstance(cut, DeadLetter)
        assert (cut.offset, cut.value_bytes, cut.is_whole) == (0, len(large), False)
        assert (whole.offset, whole.value, whole.stage) == (1, b"\x00 not ours", "trainer")
        await log.close()

    async def test_records_after_a_broken_one_are_still_read(self, world: KafkaWorld) -> None:
        await world.append(EXCLUSIONS, "e1", b"\xc3\x01broken", make_excluded("e1"))
        log = world.log()
        await log.open()
        async with asyncio.timeout(WAIT_S):
            while not await log.excluded_episodes():  # noqa: ASYNC110 - a commit's markers come after its answer
                await asyncio.sleep(0.02)
        assert await log.excluded_episodes() == {"e1"}
        await log.close()

    async def test_a_look_that_is_cancelled_loses_no_batch(self, world: KafkaWorld) -> None:
        log = world.log()
        await log.open()
        looks = [asyncio.create_task(log.next_batch(WAIT_S))]
        await asyncio.sleep(0.2)
        looks[0].cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        batches = [make_batch(number, []) for number in range(3)]
        await world.append(BATCHES, "main", *batches)
        batches_read: list[TrainingBatch] = []
        while len(batches_read) < 3:
            look = asyncio.create_task(log.next_batch(WAIT_S))
            await asyncio.sleep(0.003 * len(looks))
            if len(looks) < 20 and not look.done():
                look.cancel()
                looks.append(look)
            (outcome,) = await asyncio.gather(look, return_exceptions=True)
            if not isinstance(outcome, asyncio.CancelledError):
                assert isinstance(outcome, ReceivedBatch)
                batches_read.append(outcome.batch)
        assert batches_read == batches
        await log.close()

    async def test_missing_topics_are_named(self, world: KafkaWorld) -> None:
        log = KafkaTrainerLog(world.connection, namespace="nowhere.", run_id="main", model="agent")
        with pytest.raises(ConfigurationError, match=r"nowhere\.batches.*rollbus topics create"):
            await log.open()

    async def test_deleted_batches_are_a_loss_and_not_an_absent_broker(self, world: KafkaWorld) -> None:
        places = await world.append(BATCHES, "main", *(make_batch(number, []) for number in range(3)))
        log = world.log()
        await log.open()
        taken = await log.next_batch(WAIT_S)
        assert taken is not None
        await log.publish((), next_offset=taken.next_offset)
        await log.close()
        await world.expire(places[1])
        for _ in range(2):
            with pytest.raises(
                DataLossError, match=r"records 1 … \d were deleted.*rollbus trainer accept-loss --run main"
            ):
                await log.open()
        await log.close()

    async def test_an_offset_set_past_untrained_batches_needs_an_accepted_loss(self, world: KafkaWorld) -> None:
        places = await world.append(BATCHES, "main", *(make_batch(number, []) for number in range(3)))
        group, place = f"{world.namespace}trainer.main", place_of_batches(world.namespace)
        await commit_offsets(world.connection, group, {place: places[2].offset})
        log = world.log()
        with pytest.raises(
            DataLossError, match=r"a tool has set the offset.* 2 batches before it.*trainer accept-loss"
        ):
            await log.open()
        positions = batch_positions(world.connection, world.namespace, "main")
        assert await positions.accept([place], namespace=world.namespace, stage="trainer", now_ms=1, dry_run=False)
        await log.open()
        taken = await log.next_batch(WAIT_S)
        assert taken is not None
        assert taken.batch.number == 2
        await log.close()

    async def test_recreated_batches_are_refused_by_the_last_trained_one(self, world: KafkaWorld) -> None:
        step, log = make_step(1), world.log()
        await world.append(TRAINING_STEPS, "main", step)
        await world.append(BATCHES, "main", make_batch(0, []))
        with pytest.raises(DataLossError, match=f"does not hold batch {step.batch_hash}, the last one"):
            await log.open()
        await log.close()
