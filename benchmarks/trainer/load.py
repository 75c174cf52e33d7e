"""Write training batches of any size to a broker: trajectories, and batches of one run that name their locations."""

import random
from array import array
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.ids import content_hash
from rollbus.schemas.limits import MAX_MESSAGE_BYTES
from rollbus.schemas.records.groups import Group, GroupMember, TrainingBatch
from rollbus.schemas.records.trajectories import History, Location, Span, Trajectory
from rollbus.schemas.topics import BATCHES, TOPICS, TRAJECTORIES
from tests.builders import START_MS, make_group, make_member, make_trajectory

PARTITIONS = 4
VOCABULARY = 30_000
RUN, MODEL = "main", "agent"


async def create_topics(connection: KafkaConnection, namespace: str) -> None:
    admin = AIOKafkaAdminClient(**connection.client_options())
    await admin.start()
    try:
        config = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
        await admin.create_topics(
            [
                NewTopic(
                    topic.full_name(namespace),
                    PARTITIONS if topic.partitions == "events" else 1,
                    1,
                    topic_configs=config,
                )
                for topic in TOPICS
            ]
        )
    finally:
        await admin.close()


async def write_batches(
    connection: KafkaConnection, namespace: str, *, batches: int, groups: int, group_size: int, tokens: int
) -> list[TrainingBatch]:
    """Write so many batches, each of its own trajectories; half of a trajectory's tokens are sampled."""
    chance = random.Random(7)
    producer = AIOKafkaProducer(
        **connection.client_options(),
        max_request_size=connection.max_message_bytes,
        compression_type="zstd",
        linger_ms=20,
    )
    await producer.start()
    try:
        written_batches = []
        for number in range(batches):
            groups_of_batch = [
                await _group(producer, namespace, chance, number, place, group_size, tokens) for place in range(groups)
            ]
            batch = TrainingBatch(
                batch_hash=content_hash([number, groups, group_size, tokens]),
                run_id=RUN,
                model=MODEL,
                number=number,
                window=0,
                groups=tuple(groups_of_batch),
                newest_policy_version=number,
                cut_at_ms=START_MS,
            )
            await producer.send_and_wait(BATCHES.full_name(namespace), encode(batch), key=RUN.encode())
            written_batches.append(batch)
    finally:
        await producer.stop()
    return written_batches


async def _group(
    producer: AIOKafkaProducer, namespace: str, chance: random.Random, batch: int, index: int, size: int, tokens: int
) -> Group:
    name, topic = f"b{batch}-g{index}", TRAJECTORIES.full_name(namespace)
    newest = max(batch - 1, 0)  # the newest version while the batch before this one is trained
    members: list[GroupMember] = []
    acknowledgements = []
    for place in range(size):
        trajectory = make_payload(f"{name}-{place}", chance, version=newest, tokens=tokens)
        acknowledgements.append(await producer.send(topic, encode(trajectory), key=name.encode()))
    for place, acknowledgement in enumerate(acknowledgements):
        metadata = await acknowledgement
        location = Location(topic=topic, partition=metadata.partition, offset=metadata.offset)
        reward = float(place % 2)
        members.append(
            make_member(
                f"{name}-{place}", reward, advantage=reward - 0.5, location=location, sampled_tokens=tokens // 2,
                min_policy_version=newest, max_policy_version=newest,
            )
        )  # fmt: skip
    rewards: Sequence[float] = [member.reward for member in members]
    return make_group(name, rewards, members=tuple(members))


def make_payload(trajectory_id: str, chance: random.Random, *, version: int, tokens: int) -> Trajectory:
    """One turn: half prompt, half sampled."""
    ids = array("i", (chance.randrange(VOCABULARY) for _ in range(tokens)))
    logprobs = array("f", (-chance.random() * 3 for _ in range(tokens - tokens // 2)))
    history = History(
        token_ids=ids.tobytes(),
        logprobs=logprobs.tobytes(),
        spans=(Span(start=tokens // 2, end=tokens, turn=0, policy_version=version),),
    )
    return make_trajectory(f"e-{trajectory_id}", trajectory_id=trajectory_id, histories=(history,))
