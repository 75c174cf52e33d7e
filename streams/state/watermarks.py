"""Which tick each stage has passed → which tick each input may have. Pure.

A tick is a watermark: it goes into an input once every partition of every stage that writes there has committed what
it made of its own records before that tick. Feedback from outside (the trainer, agents) holds up no time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.topics import ONLY_WHERE_CONFIGURED, STAGE_INPUTS, Topic
from rollbus.streams.state.table import NO_TICK

Passed = dict[str, dict[int, int]]
"""By stage and partition: the last tick before which everything is committed."""


@dataclass(frozen=True, slots=True)
class Hop:
    """An input, and the stages that write into it."""

    topic: Topic
    writers: tuple[tuple[str, Topic], ...] = ()
    """Name and input of each."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The partition of a stage that an input waits for."""

    stage: str
    partition: int
    tick: int
    """The last one that it has passed."""


def hops(configs: Iterable[ConfigApplied]) -> list[Hop]:
    """Return the inputs that ticks go into, in the order of the flow; only stages that a configuration names write."""
    names: dict[str, list[str]] = {}
    for record in configs:
        names.setdefault(record.stage, []).append(f"{record.stage}.{record.run_id}" if record.run_id else record.stage)
    if "assembly" in names:
        names["alias"] = ["alias"]  # its configuration is assembly's
    topics = [topic for stage, topic in STAGE_INPUTS.items() if stage in names or stage not in ONLY_WHERE_CONFIGURED]
    return [Hop(topic, tuple(_writers_of(topic, names))) for topic in dict.fromkeys(topics)]


def _writers_of(topic: Topic, names: Mapping[str, list[str]]) -> Iterator[tuple[str, Topic]]:
    for kind in topic.written_by:
        for name in names.get(kind, ()):
            yield name, STAGE_INPUTS[kind]


@dataclass(slots=True)
class Watermarks:
    """What the ticker knows of the stages."""

    hops: list[Hop]
    partitions_of: Callable[[Topic], int]
    reached: dict[str, int] = field(default_factory=dict)
    """By topic: the last tick that it has."""
    passed: Passed = field(default_factory=dict)
    members: frozenset[str] | None = None
    """The stages that have caught up once, and hold up time since; None for all."""

    def note(self, stage: str, partition: int, tick: int) -> None:
        """Take note of a tick that a stage has passed on a partition; an older one changes nothing."""
        ticks = self.passed.setdefault(stage, {})
        if tick > ticks.get(partition, NO_TICK - 1):
            ticks[partition] = tick

    def note_all(self, passed: Mapping[str, Mapping[int, int]]) -> None:
        """Take note of all that another worker reports."""
        for stage, ticks in passed.items():
            for partition, tick in ticks.items():
                self.note(stage, partition, tick)

    def limit(self, hop: Hop, newest: int) -> int:
        """Return the newest tick that an input may have."""
        holder = self.holder(hop)
        return newest if holder is None else min(newest, holder.tick)

    def holder(self, hop: Hop) -> Holder | None:
        """Return the partition that is furthest behind of those that write into an input; None if nothing does."""
        return min(self._slowest(hop), key=lambda holder: holder.tick, default=None)

    def _slowest(self, hop: Hop) -> Iterator[Holder]:
        """Yield the slowest partition of each stage that writes into an input."""
        for stage, topic in hop.writers:
            if self.members is None or stage in self.members:
                ticks = self.passed.get(stage, {})
                numbers = [ticks.get(partition, NO_TICK) for partition in range(self.partitions_of(topic))]
                yield Holder(stage, numbers.index(min(numbers)), min(numbers))

    def admit_members(self) -> bool:
        """Let stages that have caught up hold up time from now on; return whether there are other ones than before."""
        stages = {stage: topic for hop in self.hops for stage, topic in hop.writers}
        before = self.members
        self.members = frozenset(
            stage
            for stage, topic in stages.items()
            if before is None or stage in before or self._has_caught_up(stage, topic)
        )
        return self.members != before

    def _has_caught_up(self, stage: str, topic: Topic) -> bool:
        written_ticks = [self.reached.get(hop.topic.name, NO_TICK) for hop in self.hops if stage in dict(hop.writers)]
        ticks = self.passed.get(stage, {})
        return all(ticks.get(number, NO_TICK) >= max(written_ticks) for number in range(self.partitions_of(topic)))


def to_spans(ticks: Mapping[int, int]) -> list[list[int]]:
    """Return the ticks of partitions as (first partition, last partition, tick): most partitions have the same."""
    spans: list[list[int]] = []
    for partition, tick in sorted(ticks.items()):
        if spans and spans[-1][1] == partition - 1 and spans[-1][2] == tick:
            spans[-1][1] = partition
        else:
            spans.append([partition, partition, tick])
    return spans


def to_ticks(spans: Iterable[Iterable[int]]) -> dict[int, int]:
    """Return the ticks by partition."""
    return {partition: tick for first, last, tick in spans for partition in range(first, last + 1)}
