"""Traffic that brings an opening once asks for more attempts, within a budget that no restart exceeds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.config import GroupingConfig, ResampleConfig, RunConfig
from rollbus.schemas.groups import ResampleRequested
from rollbus.streams.resample import HOUR_MS, ResampleStage
from tests.builders import make_config, make_trajectory
from tests.stepping import Stepper


def run_of(attempts: int = 100, **resample: Any) -> RunConfig:
    return RunConfig(
        grouping=GroupingConfig(group_size=4, strategy="by_prompt", window_ms=60_000),
        resample=ResampleConfig(attempts_per_hour=attempts, **resample),
    )


def asking(run: RunConfig | None = None, *, restoring: bool = False, partitions: int = 1) -> Stepper:
    stepper = Stepper(ResampleStage(run or run_of(), partitions=partitions), restoring=restoring)
    stepper.tick()
    return stepper


def traffic(name: str, opening: str = "", **fields: Any) -> Any:
    return make_trajectory(name, example_id=None, prompt_hash=opening or name, **fields)


def test_an_opening_that_comes_once_asks_for_what_its_group_lacks() -> None:
    stepper = asking()
    requests = stepper.feed(traffic("e1"))
    assert [request.attempt for request in requests] == [1, 2, 3]
    assert len({request.episode_id for request in requests}) == 3
    trajectory = traffic("e1")
    (first, *_) = requests
    assert (first.trajectory_id, first.task) == (trajectory.trajectory_id, trajectory.task)
    assert first.messages == trajectory.turns[0].added_messages
    assert first.useful_until_ms - first.requested_at_ms == 60_000


def test_the_same_opening_joins_the_group_and_after_its_window_asks_again() -> None:
    stepper = asking()
    assert len(stepper.feed(traffic("e1", "same"))) == 3
    stepper.restore()
    assert stepper.feed(traffic("e2", "same")) == []
    stepper.tick(61)
    assert len(stepper.feed(traffic("e3", "same"))) == 3


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
def test_who_is_never_alone_or_never_trained_asks_for_nothing(fields: dict[str, Any]) -> None:
    assert asking().feed(traffic("e1", **fields)) == []


def test_another_model_or_filter_asks_for_nothing() -> None:
    other = run_of().model_copy(update={"model": "other"})
    assert asking(other).feed(traffic("e1")) == []


def test_a_budget_too_small_for_a_group_is_not_spent_on_parts_of_one() -> None:
    assert asking(run_of(attempts=0)).feed(traffic("e1")) == []
    assert len(asking(run_of(attempts=1)).feed(traffic("e1"))) == 1  # with the first, the least that is a group


@given(st.integers(0, 12), st.integers(1, 3), st.lists(st.sampled_from(["episode", "hour", "restart"]), max_size=25))
def test_no_hour_asks_for_more_than_its_budget_whatever_is_restarted(
    attempts: int, partitions: int, steps: list[str]
) -> None:
    steppers = [asking(run_of(attempts), partitions=partitions) for _ in range(partitions)]
    asked = 0
    for number, step in enumerate(steps):
        for partition, stepper in enumerate(steppers):
            if step == "hour":
                asked = 0
                stepper.tick(HOUR_MS / 1000)
            elif step == "restart":
                stepper.restore()
            else:
                asked += len(stepper.feed(traffic(f"e{number}-{partition}"), partition=partition))
        assert asked <= attempts


def test_tokens_are_charged_before_and_corrected_when_an_attempt_comes_back() -> None:
    stepper = asking(run_of(tokens_per_hour=30))
    length = len(traffic("e1").histories[0].token_ids) // 4
    requests = stepper.feed(traffic("e1"))
    assert len(requests) == min(3, 30 // length)
    hour = stepper.state.hour
    assert hour.tokens == length * len(requests)
    back = traffic("x", resampled=True, histories=())
    stepper.feed(_as_episode(back, requests[0]))
    assert stepper.state.hour.tokens == hour.tokens - length
    stepper.feed(_as_episode(back, requests[0]))
    assert stepper.state.hour.tokens == hour.tokens - length


def _as_episode(trajectory: Any, request: ResampleRequested) -> Any:
    return replace(trajectory, episode_id=request.episode_id)


def test_a_share_of_traffic_is_never_exceeded() -> None:
    stepper = asking(run_of(share=0.5))
    asked = 0
    for number in range(1, 20):
        asked += len(stepper.feed(traffic(f"e{number}")))
        assert asked <= number * 0.5
    assert asked > 0


def test_a_budget_in_the_log_holds_from_where_it_stands_and_hours_begin_anew() -> None:
    stepper = asking()
    stepper.feed(make_config("resample", run_of(attempts=0), run_id="main"))
    assert stepper.feed(traffic("e1")) == []
    stepper.feed(make_config("resample", run_of(attempts=3), run_id="main"))
    assert len(stepper.feed(traffic("e2"))) == 3
    assert stepper.feed(traffic("e3")) == []
    stepper.tick(HOUR_MS / 1000)
    assert len(stepper.feed(traffic("e4"))) == 3


def test_what_is_remembered_goes_again() -> None:
    stepper = asking()
    stepper.feed(traffic("e1"))
    stepper.tick(25 * HOUR_MS / 1000)
    tables = {key.split(b"\x1f")[0] for key in stepper.changelog}
    assert tables == {b"clock", b"hour"}
