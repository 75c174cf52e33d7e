"""An opening that comes once asks for more attempts, within a budget that holds over restarts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.config import GroupingConfig, ResampleConfig, RunConfig
from rollbus.schemas.records.groups import ResampleRequested
from rollbus.streams.stages.resample import HOUR_MS, ResampleStage
from tests.builders import make_config, make_trajectory
from tests.stepper import Stepper


def make_run(attempts: int = 100, **resample: Any) -> RunConfig:
    return RunConfig(
        grouping=GroupingConfig(group_size=4, strategy="by_prompt", window_ms=60_000),
        resample=ResampleConfig(attempts_per_hour=attempts, **resample),
    )


def make_stepper(run: RunConfig | None = None, *, restoring: bool = False, partitions: int = 1) -> Stepper:
    stepper = Stepper(ResampleStage(run or make_run(), partitions=partitions), restoring=restoring)
    stepper.tick()
    return stepper


def make_traffic(name: str, opening: str = "", **fields: Any) -> Any:
    return make_trajectory(name, example_id=None, prompt_hash=opening or name, **fields)


def test_an_opening_that_comes_once_asks_for_what_its_group_lacks() -> None:
    stepper = make_stepper()
    requests = stepper.feed(make_traffic("e1"))
    assert [request.attempt for request in requests] == [1, 2, 3]
    assert len({request.episode_id for request in requests}) == 3
    trajectory = make_traffic("e1")
    (first, *_) = requests
    assert (first.trajectory_id, first.task) == (trajectory.trajectory_id, trajectory.task)
    assert first.messages == trajectory.turns[0].added_messages
    assert first.useful_until_ms - first.requested_at_ms == 60_000


def test_no_attempt_is_requested_before_the_first_tick() -> None:
    stepper = Stepper(ResampleStage(make_run(attempts=3), partitions=1))
    assert stepper.feed(make_traffic("e1")) == []
    stepper.tick()
    assert len(stepper.feed(make_traffic("e2"))) == 3
    assert stepper.feed(make_traffic("e3")) == []


def test_the_same_opening_joins_the_group_and_after_its_window_asks_again() -> None:
    stepper = make_stepper()
    assert len(stepper.feed(make_traffic("e1", "same"))) == 3
    stepper.restore()
    assert stepper.feed(make_traffic("e2", "same")) == []
    stepper.tick(61)
    assert len(stepper.feed(make_traffic("e3", "same"))) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"resampled": True},
        {"group_id": "g"},
        {"trainable": False, "untrainable_reason": "no_logprobs"},
        {"turns": ()},
        {"parent_episode_id": "p"},
    ],
)
def test_a_run_that_cannot_use_attempts_requests_none(fields: dict[str, Any]) -> None:
    assert make_stepper().feed(make_traffic("e1", **fields)) == []


def test_another_model_or_filter_asks_for_nothing() -> None:
    other = make_run().model_copy(update={"model": "other"})
    assert make_stepper(other).feed(make_traffic("e1")) == []


def test_a_budget_too_small_for_a_group_is_not_spent_on_parts_of_one() -> None:
    assert make_stepper(make_run(attempts=0)).feed(make_traffic("e1")) == []
    requests = make_stepper(make_run(attempts=1)).feed(make_traffic("e1"))
    assert len(requests) == 1  # with the first attempt that makes two, the smallest group


@given(st.integers(0, 12), st.integers(1, 3), st.lists(st.sampled_from(["episode", "hour", "restart"]), max_size=25))
def test_no_hour_asks_for_more_than_its_budget_over_restarts(attempts: int, partitions: int, steps: list[str]) -> None:
    steppers = [make_stepper(make_run(attempts), partitions=partitions) for _ in range(partitions)]
    request_count = 0
    for number, step in enumerate(steps):
        for partition, stepper in enumerate(steppers):
            if step == "hour":
                request_count = 0
                stepper.tick(HOUR_MS / 1000)
            elif step == "restart":
                stepper.restore()
            else:
                request_count += len(stepper.feed(make_traffic(f"e{number}-{partition}"), partition=partition))
        assert request_count <= attempts


SAMPLED_TOKENS = 2
"""Tokens that the builders' trajectory sampled; an attempt may sample twice as many unless the run says otherwise."""


def test_an_attempt_returns_its_unsampled_tokens_to_the_budget() -> None:
    stepper = make_stepper(make_run(tokens_per_hour=11))
    requests = stepper.feed(make_traffic("e1"))
    max_tokens = [request.max_tokens for request in requests]
    assert max_tokens == [2 * SAMPLED_TOKENS] * 2  # the budget does not reach for a third
    assert stepper.state.hour.tokens == 4 * SAMPLED_TOKENS
    stepper.feed(make_finished_attempt(requests[0]))
    assert stepper.state.hour.tokens == 3 * SAMPLED_TOKENS
    stepper.feed(make_finished_attempt(requests[0]))
    assert stepper.state.hour.tokens == 3 * SAMPLED_TOKENS


def test_a_run_may_say_what_one_attempt_may_sample() -> None:
    requests = make_stepper(make_run(tokens_per_hour=100, tokens_per_attempt=30)).feed(make_traffic("e1"))
    assert [request.max_tokens for request in requests] == [30] * 3


def test_without_a_limit_of_tokens_none_is_asked_for() -> None:
    assert {request.max_tokens for request in make_stepper().feed(make_traffic("e1"))} == {None}


@pytest.mark.parametrize(
    "fields", [{"stop_reason": "error"}, {"stop_reason": "timeout"}, {"closed_by": "inactivity"}, {"turns": ()}]
)
def test_a_call_that_may_have_sampled_returns_no_tokens(fields: dict[str, Any]) -> None:
    stepper = make_stepper(make_run(tokens_per_hour=100))
    requests = stepper.feed(make_traffic("e1"))
    before = stepper.state.hour
    stepper.feed(make_finished_attempt(requests[0], **(fields | ({"histories": ()} if "turns" in fields else {}))))
    assert stepper.state.hour == before


def test_an_hours_rest_is_not_carried_over() -> None:
    stepper = make_stepper(make_run(tokens_per_hour=100))
    requests = stepper.feed(make_traffic("e1"))
    stepper.tick(HOUR_MS / 1000)
    stepper.feed(make_finished_attempt(requests[0]))
    assert stepper.state.hour.tokens == 0
    stepper.feed(make_finished_attempt(requests[1], sampled=9))
    assert stepper.state.hour.tokens == 9 - 2 * SAMPLED_TOKENS


@given(
    st.integers(0, 60),
    st.none() | st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from(["episode", "back", "hour", "restart"]), st.integers(0, 12)), max_size=40),
)
def test_no_hour_samples_more_than_its_tokens_whenever_attempts_come_back(
    tokens: int, tokens_per_attempt: int | None, steps: list[tuple[str, int]]
) -> None:
    """At every moment, what an hour's attempts have sampled or still may is within the hour's tokens."""
    stepper = make_stepper(make_run(tokens_per_hour=tokens, tokens_per_attempt=tokens_per_attempt))
    hours: list[dict[str, int]] = [{}]
    open_requests: list[tuple[int, ResampleRequested]] = []
    for number, (step, chance) in enumerate(steps):
        if step == "hour":
            stepper.tick(HOUR_MS / 1000)
            hours.append({})
        elif step == "restart":
            stepper.restore()
        elif step == "episode":
            requests = stepper.feed(make_traffic(f"e{number}"))
            hours[-1].update((request.episode_id, request.max_tokens or 0) for request in requests)
            open_requests += [(len(hours) - 1, request) for request in requests]
        elif open_requests:
            hour, request = open_requests.pop(chance % len(open_requests))
            hours[hour][request.episode_id] = min(chance, request.max_tokens or 0)
            stepper.feed(make_finished_attempt(request, sampled=hours[hour][request.episode_id]))
        assert all(sum(hour.values()) <= tokens for hour in hours)


def make_finished_attempt(request: ResampleRequested, *, sampled: int = SAMPLED_TOKENS, **fields: Any) -> Any:
    """The trajectory of an attempt that a request asked for."""
    trajectory = make_traffic(request.episode_id, resampled=True)
    (turn,) = trajectory.turns
    sampled_fields = {"turns": (replace(turn, completion_tokens=sampled),)} | (
        {} if sampled == SAMPLED_TOKENS else {"histories": ()}
    )
    return replace(trajectory, **(sampled_fields | fields))


def test_a_share_of_traffic_is_never_exceeded() -> None:
    stepper = make_stepper(make_run(share=0.5))
    request_count = 0
    for number in range(1, 20):
        request_count += len(stepper.feed(make_traffic(f"e{number}")))
        assert request_count <= number * 0.5
    assert request_count > 0


def test_a_share_of_traffic_is_used_up() -> None:
    stepper = make_stepper(make_run(attempts=1_000, share=0.29))
    assert sum(len(stepper.feed(make_traffic(f"e{number}"))) for number in range(100)) == 29


def test_a_budget_in_the_log_applies_from_its_place_and_starts_new_hours() -> None:
    stepper = make_stepper()
    stepper.feed(make_config("resample", make_run(attempts=0), run_id="main"))
    assert stepper.feed(make_traffic("e1")) == []
    stepper.feed(make_config("resample", make_run(attempts=3), run_id="main"))
    assert len(stepper.feed(make_traffic("e2"))) == 3
    assert stepper.feed(make_traffic("e3")) == []
    stepper.tick(HOUR_MS / 1000)
    assert len(stepper.feed(make_traffic("e4"))) == 3


def test_the_memory_of_resampling_empties_again() -> None:
    stepper = make_stepper()
    stepper.feed(make_traffic("e1"))
    stepper.tick(25 * HOUR_MS / 1000)
    tables = {key.split(b"\x1f")[0] for key in stepper.changelog}
    assert tables == {b"clock", b"hour"}
