"""A conversation over two processes: what is said in the second is learnt of the first, through all stages."""

from typing import Any

from rollbus.producers import MemorySink, Recorder, init
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.pipeline import namespace_stages, run_stages
from tests.builders import START_MS, make_tick
from tests.flow.in_memory import Flow

REWARDS = (RewardConfig(type="next_turn", name="next"),)
RUN = RunConfig(grouping=GroupingConfig(strategy="single", reward_wait_ms=600_000))


def talk(recorder: Recorder, conversation: str, question: str, answer: str) -> None:
    tokens: dict[str, Any] = {"token_ids": [4, 5], "logprobs": [-0.5, -0.5], "prompt_token_ids": [1, 2, 3]}
    with recorder.episode(task="support", conversation=conversation) as episode:
        messages = [{"role": "user", "content": question}]
        episode.turn(messages=messages, answer=answer, model="agent@0", temperature=1.0, **tokens)


class Agents:
    """Two processes of an agent, and the stages behind them."""

    def __init__(self) -> None:
        self.sinks = [MemorySink(), MemorySink()]
        self.recorders = [init(sink=sink, producer="agent", logprob_mode="raw") for sink in self.sinks]
        stages = [*namespace_stages(AssemblyConfig(), ScoringConfig(rewards=REWARDS)), *run_stages(RUN)]
        self.flow = Flow(stages, partitions=4)
        self.seconds = 0
        self._records_taken: dict[tuple[int, str], int] = {}

    def scores(self) -> list[Score]:
        return [record for record in self.flow.records(SCORES) if isinstance(record, Score)]

    async def pass_time(self, seconds: int = 1) -> None:
        """Bring what was recorded since, then a tick."""
        for number, (recorder, sink) in enumerate(zip(self.recorders, self.sinks, strict=True)):
            assert recorder.flush(120)
            for topic in (EPISODE_EVENTS, ALIASES):
                records = sink.records(topic.name)
                for record in records[self._records_taken.get((number, topic.name), 0) :]:
                    key = record.alias if topic is ALIASES else record.root_episode_id
                    self.flow.publish(topic, key, record)
                self._records_taken[number, topic.name] = len(records)
        self.seconds += seconds
        await self.flow.tick(make_tick(self.seconds, stream_time_ms=START_MS + 1000 * self.seconds))


async def test_words_in_another_process_an_hour_later_train_the_last_answer() -> None:
    agents = Agents()
    first, second = agents.recorders
    await agents.pass_time()
    for number in range(4):
        talk(first, f"c{number}", f"where is my parcel {number}", "BILLING" if number % 2 else "DELIVERY")
    await agents.pass_time()
    assert [score.outcome for score in agents.scores()] == ["missing"] * 4
    await agents.pass_time(300)
    for number in range(4):
        talk(second, f"c{number}", "no, it's about the parcel" if number % 2 else "thanks", "OTHER")
    await agents.pass_time()
    await agents.pass_time(700)
    groups = [record for record in agents.flow.records(RUN_LOG) if isinstance(record, Group)]
    assert sorted(member.reward for group in groups for member in group.members) == [0.0, 0.0, 1.0, 1.0]
    spoken = [turn for score in agents.scores() for turn in score.turn_rewards]
    assert sorted(turn.signal for turn in spoken) == ["correction", "correction", "thanks", "thanks"]
    reports = {record.event_id: record for record in agents.flow.records(EPISODE_EVENTS) if hasattr(record, "signal")}
    assert {reports[turn.event_id].comment for turn in spoken} == {"no, it's about the parcel", "thanks"}
    corrected = [member for group in groups for member in group.members if member.hints]
    assert [member.reward for member in corrected] == [0.0, 0.0]
    for member in corrected:
        (at,) = {member.revised_at}
        assert at is not None
        revised = agents.flow.log.topics[TRAJECTORIES.name][at.partition][at.offset].record
        assert [reward.comment for reward in revised.rewards] == ["no, it's about the parcel"]
        assert [reward.event_id for reward in revised.rewards] == list(member.hints.values())
    for recorder in agents.recorders:
        recorder.close()
