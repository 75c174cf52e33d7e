"""From one attempt of traffic to a full group: the user's agent runs again, at most once for each request."""

import asyncio
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest

from rollbus.producers import MemorySink, init
from rollbus.resample import attempts as resample
from rollbus.resample.attempts import Attempt, Resampler
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    GroupingConfig,
    ResampleConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, Event
from rollbus.schemas.records.groups import Group, ResampleRequested
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import EPISODE_EVENTS, RESAMPLE_REQUESTS, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.pipeline import namespace_stages, run_stages
from tests.builders import make_episode, make_tick, make_turn
from tests.flow.in_memory import Flow

RUN = RunConfig(
    grouping=GroupingConfig(group_size=4, strategy="by_prompt"),
    batching=BatchingConfig(groups_per_step=1),
    resample=ResampleConfig(attempts_per_hour=100),
)
TRAFFIC = {"example_id": None}


class Panic(BaseException):
    """What an extension in Rust raises when it panics is not an Exception."""


def make_flow() -> Flow:
    return Flow([*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(RUN)])


def publish(flow: Flow, events: list[Any]) -> None:
    for event in events:
        flow.publish(EPISODE_EVENTS, event.root_episode_id, event)


def request(attempt: int = 1, **fields: Any) -> ResampleRequested:
    defaults: dict[str, Any] = {"run_id": "main", "trajectory_id": "t", "task": "play"}
    defaults |= {"requested_at_ms": 0, "useful_until_ms": 10}
    return ResampleRequested(episode_id=f"r{attempt}", attempt=attempt, **(defaults | fields))


async def make(
    agent: Any, *requests: ResampleRequested, now_ms: int = 0, written_ms: int | None = None, **options: Any
) -> tuple[Any, MemorySink]:
    sink = MemorySink()
    recorder = init(sink=sink)
    resampler = Resampler(agent, recorder, clock_ms=lambda: now_ms, **options)
    for request in requests:
        await resampler.wait_for_room()
        resampler.begin(request, written_ms)
    await resampler.finish()
    await asyncio.to_thread(recorder.close)
    return resampler.counts, sink


async def test_resampled_attempts_complete_the_group_of_a_single_attempt() -> None:
    flow = make_flow()
    await flow.tick(make_tick(0))
    publish(flow, make_episode("traffic", reward=0.0, start=TRAFFIC))
    await flow.settle()
    requests = flow.records(RESAMPLE_REQUESTS)
    assert len(requests) == 3

    def agent(attempt: Attempt) -> None:
        """Says what a wrapped client would: the same opening, another answer."""
        events = make_episode(attempt.episode.id, reward=1.0, start=TRAFFIC | {"resampled": True})
        publish(flow, events)

    await make(agent, *requests)
    await flow.settle()
    await flow.tick(make_tick(1))
    (group,) = [record for record in flow.records(RUN_LOG) if isinstance(record, Group)]
    assert sorted((member.resampled, member.reward) for member in group.members) == [(False, 0.0)] + [(True, 1.0)] * 3
    for topic, kind in ((TRAJECTORIES, Trajectory), (SCORES, Score)):
        is_resampled_by_episode = {
            record.episode_id: record.resampled for record in flow.records(topic) if isinstance(record, kind)
        }
        assert is_resampled_by_episode == {"traffic": False} | {request.episode_id: True for request in requests}
    assert flow.records(RESAMPLE_REQUESTS) == requests  # what was made asks for nothing


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_the_agent_runs_in_an_episode_of_the_requests_id_marked_as_resampled(form: str) -> None:
    seen: list[Attempt] = []

    async def run_async(attempt: Attempt) -> None:
        seen.append(attempt)

    opening = make_turn().added_messages
    agent = run_async if form == "async" else seen.append
    counts, sink = await make(agent, request(messages=opening, example_id="x", labels={"who": "a"}))
    assert counts == {"made": 1}
    (attempt,) = seen
    assert (attempt.task, attempt.example_id, attempt.labels) == ("play", "x", {"who": "a"})
    assert attempt.messages == [{"role": message.role, "content": message.content} for message in opening]
    start, *_ = [record for record in sink.records() if isinstance(record, EpisodeStarted)]
    assert (start.episode_id, start.resampled) == ("r1", True)
    assert start.labels == {"who": "a", "resampled_from": "t"}


async def test_a_misbehaving_agent_harms_only_its_own_attempt() -> None:
    async def agent(attempt: Attempt) -> None:
        match attempt.episode.id:
            case "r1":
                raise RuntimeError("user code")
            case "r2":
                await asyncio.Event().wait()
            case "r3":
                sys.exit("user code")
            case "r4":
                own_task = asyncio.create_task(asyncio.sleep(60))
                own_task.cancel()
                await own_task
            case "r5":
                raise Panic
            case "r6":
                attempt.labels["tenant"] = "acme"  # type: ignore[index]

    counts, sink = await make(agent, *map(request, range(1, 8)), concurrency=1, timeout_s=0.05)
    assert counts == {"failed": 6, "made": 1}
    endings = [record for record in sink.records() if isinstance(record, EpisodeEnded)]
    assert {ending.episode_id for ending in endings} == {f"r{number}" for number in range(1, 8)}
    assert {ending.episode_id: ending.stop_reason for ending in endings}["r1"] == "error"


async def test_agents_that_hang_in_threads_hold_up_no_attempt_beside_them() -> None:
    attempt_done = threading.Event()

    def agent(attempt: Attempt) -> None:
        if attempt.episode.id == "r40":
            attempt_done.set()
        else:
            assert attempt_done.wait(120)

    counts, _ = await make(agent, *map(request, range(1, 41)), concurrency=40)
    assert counts == {"made": 40}


async def test_an_agent_that_ignores_cancellation_blocks_no_later_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resample, "CANCEL_S", 0.01)
    over = asyncio.Event()

    async def agent(attempt: Attempt) -> None:
        while attempt.episode.id != "r3" and not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    sink = MemorySink()
    recorder = init(sink=sink)
    resampler = Resampler(agent, recorder, clock_ms=lambda: 0, concurrency=1, timeout_s=0.01)
    async with asyncio.timeout(120):
        for resample_request in map(request, (1, 2, 3)):
            await resampler.wait_for_room()
            resampler.begin(resample_request)
        await resampler.finish()
    assert len(resampler.left_behind) == 2
    over.set()
    await asyncio.wait(resampler.left_behind)
    await asyncio.to_thread(recorder.close)
    assert resampler.counts["failed"] + resampler.counts["made"] == 3
    assert resampler.counts["failed"] >= 2
    ended = [record.episode_id for record in sink.records() if type(record).__name__ == "EpisodeEnded"]
    assert sorted(ended) == ["r1", "r2", "r3"]


async def test_too_many_hanging_agents_stop_further_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resample, "MAX_HUNG", 1)
    monkeypatch.setattr(resample, "CANCEL_S", 0.01)
    over, begun = asyncio.Event(), list[str]()

    async def agent(attempt: Attempt) -> None:
        begun.append(attempt.episode.id)
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    counts, _ = await make(agent, *map(request, (1, 2)), concurrency=1, timeout_s=0.01)
    over.set()
    assert (counts, begun) == ({"failed": 2}, ["r1"])


@pytest.mark.parametrize(
    ("now_ms", "written_ms", "outcome"), [(11, None, "too_late"), (5_010, 5_000, "made"), (5_011, 5_000, "too_late")]
)
async def test_an_attempt_too_late_for_its_group_is_not_made(now_ms: int, written_ms: int | None, outcome: str) -> None:
    counts, sink = await make(lambda attempt: None, request(), now_ms=now_ms, written_ms=written_ms)
    assert counts == {outcome: 1}
    assert any(isinstance(record, Event) for record in sink.records()) == (outcome == "made")


async def test_attempts_run_at_once_up_to_the_configured_number() -> None:
    running, most = 0, 0

    async def agent(attempt: Attempt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    counts, _ = await make(agent, *map(request, range(1, 8)), concurrency=2)
    assert (counts, most) == ({"made": 7}, 2)
