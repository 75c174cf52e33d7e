"""One stage of a replay: its states by partition, what waits for it, what it holds back, and what it counts."""

from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas.records.replays import StageDigest
from rollbus.schemas.topics import Topic
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.replay.decide.digest import Digest, combine_digests
from rollbus.streams.state.stage import Incoming, PureAsEffects


@dataclass(slots=True, eq=False)
class Reader:
    """One stage as a reader of its input, with its states; without states where it runs in other processes."""

    stage: Any
    name: str
    input: Topic
    has_effects: bool
    """Whether it must be asked for answers before its step."""
    states: list[Any]
    """By partition of the input."""
    digests: list[Digest | bytes]
    """By partition; the finished digest's bytes where the stage runs elsewhere."""
    waiting: list[tuple[int, Incoming]] = field(default_factory=list)
    """What an effects stage has not been asked about yet."""
    held_records: list[tuple[Topic, int, bytes | None, bytes]] = field(default_factory=list)
    """Drops and dead letters of this round: topic, partition, key and bytes."""
    records_in: int = 0
    records_out: int = 0
    dead_letters: int = 0

    @classmethod
    def of(cls, stage: AnyStage, partitions: int, *, elsewhere: bool = False) -> "Reader":
        """Return a stage at its beginning; one that runs elsewhere has no state here."""
        count = partitions if stage.input.partitions == "events" else 1
        return cls(
            stage=stage.stage if isinstance(stage, PureAsEffects) else stage,
            name=stage.name,
            input=stage.input,
            has_effects=not isinstance(stage, PureAsEffects),
            states=[] if elsewhere else [stage.new_state() for _ in range(count)],
            digests=[Digest() for _ in range(count)],
        )

    def count(self, partition: int, topic: str, key: str, record: Any, data: bytes) -> None:
        """Take an output of a partition that runs here into account."""
        self.records_out += 1
        digest = self.digests[partition]
        assert isinstance(digest, Digest)
        digest.add(topic, key, record, data)

    def digest(self) -> StageDigest:
        """Return what it made, so far."""
        return StageDigest(
            stage=self.name,
            records_in=self.records_in,
            records_out=self.records_out,
            dead_letters=self.dead_letters,
            digest=combine_digests(self.digests),
        )


@dataclass(frozen=True, slots=True)
class UnfetchedRecord:
    """A record that the replay made, in the form of a fetched one: its dead letter is written from this form."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @classmethod
    def of(cls, incoming: Incoming) -> "UnfetchedRecord":
        """Return what a stage was given."""
        return cls(incoming.location.offset, 0, incoming.key.encode(), incoming.data)
