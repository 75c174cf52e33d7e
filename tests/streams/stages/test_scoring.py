"""Trajectories get scores; a function that misbehaves harms its own trajectory only, and None is not 0."""

import asyncio
import contextlib
import copy
import dataclasses
import json
import math
import sys
import threading
from typing import Any, cast

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import AssemblyConfig, RewardConfig, ScoringConfig
from rollbus.schemas.records.trajectories import Location, Reward, RewardRevised, Score, Trajectory, TurnReward
from rollbus.schemas.topics import SCORES
from rollbus.streams.rewards.contract import RewardContext, RewardFunction, TurnValues, average_turns
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.stages.scoring.threads import MAX_HUNG, CallThreads
from rollbus.streams.state.stage import Incoming
from tests.builders import START_MS, make_config, make_tick, make_trajectory
from tests.stepper import Stepper, of_topic, reasons, splits


async def _hang(trajectory: Trajectory, context: RewardContext) -> float:
    await asyncio.Event().wait()
    return 1.0


def _hang_in_thread(trajectory: Trajectory, context: RewardContext) -> float:
    threading.Event().wait(600)
    return 1.0


def _raise(trajectory: Trajectory, context: RewardContext) -> float:
    raise RuntimeError("user code")


async def _half(trajectory: Trajectory, context: RewardContext) -> float:
    return 0.5


async def _cancel_itself(trajectory: Trajectory, context: RewardContext) -> float:
    own_task = asyncio.create_task(asyncio.sleep(60))
    own_task.cancel()
    await own_task
    return 1.0


async def _exit(trajectory: Trajectory, context: RewardContext) -> float:
    sys.exit("user code")


def _exit_in_thread(trajectory: Trajectory, context: RewardContext) -> float:
    sys.exit("user code")


class Panic(BaseException):
    """What an extension in Rust raises when it panics is not an Exception."""


async def _panic(trajectory: Trajectory, context: RewardContext) -> float:
    raise Panic("user code")


def _panic_in_thread(trajectory: Trajectory, context: RewardContext) -> float:
    raise Panic("user code")


def _interrupt(trajectory: Trajectory, context: RewardContext) -> float:
    raise KeyboardInterrupt


class UnprintableError(Exception):
    """Its text raises too."""

    def __repr__(self) -> str:
        raise Panic("no text")


def _unprintable(trajectory: Trajectory, context: RewardContext) -> float:
    raise UnprintableError


def _write_labels(trajectory: Trajectory, context: RewardContext) -> float:
    trajectory.labels["tenant"] = "acme"  # type: ignore[index]
    return 1.0


def _write_options(trajectory: Trajectory, context: RewardContext) -> float:
    context.options.setdefault("limit", 3)  # type: ignore[attr-defined]
    return 1.0


def _find_nothing(trajectory: Trajectory, context: RewardContext) -> float:
    return next(reward.value for reward in trajectory.rewards if reward.name == "no such")


REGISTRY = {
    **BUILT_IN,
    "hang": RewardFunction(_hang),
    "hang_in_thread": RewardFunction(_hang_in_thread),
    "raise": RewardFunction(_raise),
    "nan": RewardFunction(lambda trajectory, context: math.nan),
    "text": RewardFunction(lambda trajectory, context: "good"),  # type: ignore[arg-type]
    "cancelled": RewardFunction(_cancel_itself),
    "exit": RewardFunction(_exit),
    "exit_in_thread": RewardFunction(_exit_in_thread),
    "find_nothing": RewardFunction(_find_nothing),
    "panic": RewardFunction(_panic),
    "panic_in_thread": RewardFunction(_panic_in_thread),
    "panic_in_place": RewardFunction(_panic_in_thread, quick=True),
    "interrupt": RewardFunction(_interrupt),
    "interrupt_in_place": RewardFunction(_interrupt, quick=True),
    "unprintable": RewardFunction(_unprintable),
    "unprintable_in_place": RewardFunction(_unprintable, quick=True),
    "number_as_text": RewardFunction(lambda trajectory, context: "1_000"),  # type: ignore[arg-type]
    "number_as_bytes": RewardFunction(lambda trajectory, context: b"1"),
    "write_labels": RewardFunction(_write_labels),
    "write_options": RewardFunction(_write_options, quick=True),
    "verbose": RewardFunction(lambda trajectory, context: "good" * 1_000_000),  # type: ignore[arg-type]
    "none": RewardFunction(lambda trajectory, context: None),
    "half": RewardFunction(_half),
    "turns": RewardFunction(lambda trajectory, context: len(trajectory.turns)),
}


def scoring(*rewards: RewardConfig, **config: Any) -> Stepper:
    stage = ScoringStage(
        ScoringConfig(rewards=rewards or (RewardConfig(),), **config), keep_ms=100_000, registry=REGISTRY, attempts=1
    )
    stepper = Stepper(stage)
    stepper.tick()
    return stepper


def component(kind: str, **fields: Any) -> RewardConfig:
    """The limit is short for what exceeds it by far, and long for what must not exceed it on a busy machine either."""
    limit_s = 0.05 if kind in ("hang", "hang_in_thread") else 600.0
    defaults: dict[str, Any] = {"type": kind, "name": kind, "timeout_s": limit_s}
    return RewardConfig(**(defaults | fields))


def stage_of(function: RewardFunction, *, attempts: int = 1, **fields: Any) -> ScoringStage:
    """A stage that asks one function, `own`."""
    config, registry = ScoringConfig(rewards=(component("own", **fields),)), {"own": function}
    return ScoringStage(config, keep_ms=1, registry=registry, attempts=attempts)


def incoming() -> Incoming:
    return Incoming(make_trajectory(), "key", Location(topic="t", partition=0, offset=0), b"")


def make_revision(episode: str, *values: float, revision: int = 1, **fields: Any) -> RewardRevised:
    rewards = tuple(Reward(event_id=f"r{index}", name="reward", value=value) for index, value in enumerate(values))
    return RewardRevised(
        trajectory_id=make_trajectory(episode).trajectory_id,
        episode_id=episode,
        group_hint="example:play:x1",
        revision=revision,
        rewards=rewards,
        revised_at_ms=START_MS,
        **fields,
    )


def test_a_score_is_the_header_of_its_trajectory() -> None:
    (score,) = scoring().feed(make_trajectory(reward=0.75))
    assert (score.value, score.outcome, score.components) == (0.75, "scored", {"reward": 0.75})
    assert (score.tokens, score.sampled_tokens, score.longest_history_tokens) == (5, 2, 5)
    assert (score.model, score.min_policy_version, score.max_policy_version) == ("agent", 0, 0)
    assert score.location.offset == 1


def test_a_header_is_small_however_long_the_labels_of_its_trajectory_are() -> None:
    labels = {"document": "text " * 400_000, "user": "u1"}
    (score,) = scoring().feed(make_trajectory(labels=labels))
    assert len(encode(score)) < 10_000
    assert (score.labels["user"], labels["document"].startswith(score.labels["document"])) == ("u1", True)


def test_components_are_weighted_summed_and_clipped() -> None:
    rewards = (RewardConfig(weight=2.0), component("half", weight=-1.0))
    (score,) = scoring(*rewards).feed(make_trajectory(reward=1.0))
    assert (score.value, score.components) == (1.5, {"reward": 1.0, "half": 0.5})
    (clipped,) = scoring(*rewards, clip_high=1.0).feed(make_trajectory(reward=1.0))
    assert clipped.value == 1.0


@pytest.mark.parametrize(("reward", "weight"), [(1e200, 1.0), (-1.7e308, 1.0), (1e20, 1e20)])
def test_a_number_too_large_to_compute_with_fails_its_own_trajectory(reward: float, weight: float) -> None:
    outputs = scoring(RewardConfig(weight=weight)).feed(make_trajectory(reward=reward))
    assert (outputs[0].outcome, reasons(outputs)) == ("failed", ["score_failed"])


@pytest.mark.parametrize("kind", ["raise", "none"])
def test_a_component_of_weight_0_is_measured_and_blocks_nothing(kind: str) -> None:
    outputs = scoring(RewardConfig(), component(kind, weight=0.0), component("half", weight=0.0)).feed(
        make_trajectory()
    )
    (score,) = outputs
    assert (score.outcome, score.value, score.components) == ("scored", 1.0, {"reward": 1.0, "half": 0.5})
    assert bool(score.error) == (kind == "raise"), "it is written down all the same"


def test_a_component_with_a_share_measures_a_sample_of_trajectories() -> None:
    stepper = scoring(RewardConfig(), component("half", weight=0.0, share=0.3))
    scores = stepper.feed(*(make_trajectory(f"e{number}") for number in range(200)))
    sampled = {score.episode_id for score in scores if "half" in score.components}
    assert 35 < len(sampled) < 85
    assert {score.value for score in scores} == {1.0}
    with pytest.raises(ValueError, match="leaves scores without a value; set weight 0"):
        RewardConfig(share=0.5)


def test_a_missing_reward_is_missing_and_not_zero() -> None:
    (score,) = scoring().feed(make_trajectory(reward=None))
    assert (score.outcome, score.value) == ("missing", None)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        *((kind, "within 0.05 s") for kind in ("hang", "hang_in_thread")),
        *((kind, "raised") for kind in ("raise", "cancelled", "exit", "exit_in_thread", "find_nothing")),
        *((kind, "raised Panic('user code')") for kind in ("panic", "panic_in_thread", "panic_in_place")),
        *((kind, "raised KeyboardInterrupt") for kind in ("interrupt", "interrupt_in_place")),
        *((kind, "raised Unprintable") for kind in ("unprintable", "unprintable_in_place")),
        *((f"number_as_{kind}", "which is text and not a number") for kind in ("text", "bytes")),
        ("write_labels", "trajectory.labels is read-only"),
        ("write_options", "context.options is read-only"),
        *(("nan", "returned nan"), ("text", "not a number"), ("verbose", "not a number")),
    ],
)
def test_a_misbehaving_function_fails_only_its_own_trajectory(kind: str, word: str) -> None:
    stepper = scoring(RewardConfig(), component(kind))
    outputs = stepper.feed(make_trajectory("e1"))
    assert isinstance(outputs[0], Score)
    assert (outputs[0].outcome, outputs[0].value) == ("failed", None)
    assert word in (outputs[0].error or "")
    assert reasons(outputs) == ["score_failed"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"share": share} for share in (math.nan, math.inf, -math.inf, 1e300, None)),
        *({"turn_event_id": event_id} for event_id in (None, 7, "t1\x1ft2")),
        *({"event_id": None}, {"event_id": "r\x1f1"}, {"signal": None}),
    ],
)
def test_an_answer_about_turns_that_fits_no_score_fails_its_component(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"turn_event_id": "t1", "component": "own", "value": 1.0, **wrong}
    answer = TurnValues((TurnReward(**fields),), 1.0)
    for quick in (True, False):
        outputs = Stepper(stage_of(RewardFunction(lambda *_: answer, quick=quick))).feed(make_trajectory())
        assert reasons(outputs) == ["score_failed"]
        assert (outputs[0].outcome, outputs[0].value, outputs[0].turn_rewards) == ("failed", None, ())
        assert "reward 'own' gave" in outputs[0].error


@pytest.mark.parametrize("returned", [object(), RewardFunction(_half)])
def test_the_report_of_a_failure_is_the_same_in_every_process(returned: object) -> None:
    def raises(trajectory: Trajectory, context: RewardContext) -> float:
        raise ValueError(returned)

    for function, word in ((lambda *_: cast(float, returned), "not a number"), (raises, "ValueError")):
        (score, _) = Stepper(stage_of(RewardFunction(function))).feed(make_trajectory())
        assert word in score.error
        assert "0x" not in score.error


def test_the_errors_of_a_score_fit_into_one_record() -> None:
    def repeats(trajectory: Trajectory, context: RewardContext) -> float:
        raise ValueError("good" * 1_000_000)

    for function in (REGISTRY["verbose"], RewardFunction(repeats), RewardFunction(repeats, quick=True)):
        assert all(len(encode(record)) < 5_000 for record in Stepper(stage_of(function)).feed(make_trajectory()))


async def test_a_function_that_ignores_its_cancellation_is_left_behind() -> None:
    over = asyncio.Event()

    async def deaf(trajectory: Trajectory, context: RewardContext) -> float:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()
        return 1.0

    stage = stage_of(RewardFunction(deaf), timeout_s=0.05)
    (outputs,) = await stage.answer(stage.new_state(), [incoming()])
    over.set()
    assert "within 0.05 s" in (outputs["own"].error or "")


async def test_calls_of_many_partitions_are_not_taken_for_hanging_ones() -> None:
    together = threading.Barrier(MAX_HUNG + 1)
    stage = stage_of(RewardFunction(lambda trajectory, context: float(together.wait() >= 0)))
    answers = [stage.answer(stage.new_state(), [incoming()]) for _ in range(MAX_HUNG + 1)]
    assert [answer["own"].value for (answer,) in await asyncio.gather(*answers)] == [1.0] * (MAX_HUNG + 1)


async def test_calls_that_were_given_up_are_counted_until_they_come_back() -> None:
    threads, release = CallThreads("given-up", most_hung=2), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.call(release.wait), 0.01)
    with pytest.raises(RuntimeError, match="2 calls hang already"):
        await threads.call(release.wait)
    release.set()
    for thread in [scoring_thread for scoring_thread in threading.enumerate() if scoring_thread.name == "given-up"]:
        thread.join()
    await asyncio.sleep(0)
    assert threads.hung == 0
    assert await threads.call(release.wait) is True


@pytest.mark.parametrize("kind", ["panic", "panic_in_thread", "panic_in_place", "interrupt"])
def test_scoring_goes_on_for_the_others_after_a_panic(kind: str) -> None:
    stepper = scoring(component(kind))
    assert [reasons(stepper.feed(make_trajectory(name))) for name in ("e1", "e2")] == [["score_failed"]] * 2


def test_a_function_may_read_its_input_but_not_change_it() -> None:
    seen: dict[str, Any] = {}

    def reads(trajectory: Trajectory, context: RewardContext) -> float:
        copied = copy.deepcopy(trajectory)
        copied.labels["own"] = "copy"  # type: ignore[index]
        seen["json"] = json.dumps([trajectory.labels, context.options])
        seen["merged"] = trajectory.labels | {"more": "1"}  # type: ignore[operator]
        seen["fields"] = dataclasses.asdict(trajectory)["labels"]
        return 1.0

    trajectory = make_trajectory(labels={"tenant": "t1"})
    stepper = Stepper(stage_of(RewardFunction(reads), options={"limit": 3}))
    (score,) = stepper.feed(trajectory)
    assert (score.value, score.labels) == (1.0, {"tenant": "t1"}), score.error
    assert seen == {
        "json": '[{"tenant": "t1"}, {"limit": 3}]',
        "merged": {"tenant": "t1", "more": "1"},
        "fields": {"tenant": "t1"},
    }


def test_a_function_that_fails_twice_is_called_a_third_time() -> None:
    calls: list[str] = []

    def flaky(trajectory: Trajectory, context: RewardContext) -> float:
        calls.append(trajectory.episode_id)
        if len(calls) < 3:
            raise ConnectionError("later")
        return 1.0

    assert Stepper(stage_of(RewardFunction(flaky), attempts=3)).feed(make_trajectory())[0].value == 1.0


@pytest.mark.parametrize(("retry_s", "pauses"), [(0.001, [0.002, 0.004]), (0, [0, 0])])
def test_a_replay_does_not_wait_for_a_function_that_does_not_wait(
    retry_s: float, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that each of a log's failures cost a second."""
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    def wrong(trajectory: Trajectory, context: RewardContext) -> float:
        raise KeyError("no such label")

    stage = ScoringStage(ScoringConfig(rewards=(RewardConfig(type="wrong"),)), keep_ms=1, retry_s=retry_s,
                         registry={**BUILT_IN, "wrong": RewardFunction(wrong)})  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr("rollbus.streams.stages.scoring.answers.asyncio.sleep", pause)
        outputs = Stepper(stage).feed(make_trajectory())
    assert (outputs[0].outcome, paused) == ("failed", pauses)


def test_calls_in_flight_are_bounded() -> None:
    running, most = 0, 0

    async def watch_calls(trajectory: Trajectory, context: RewardContext) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return 1.0

    config = ScoringConfig(rewards=(RewardConfig(type="watched"),), concurrency=3)
    stage = ScoringStage(config, keep_ms=1, registry={**BUILT_IN, "watched": RewardFunction(watch_calls)})
    outputs = Stepper(stage).outputs([make_trajectory(f"e{index}") for index in range(20)])
    assert (len(of_topic(outputs, SCORES)), most) == (20, 3)


def test_a_revision_asks_feedback_again_and_keeps_the_other_components() -> None:
    stepper = scoring(RewardConfig(), component("turns"))
    stepper.feed(make_trajectory("e1", reward=0.0))
    stepper.restore()
    (score,) = stepper.feed(make_revision("e1", 1.0), make_revision("e1", 1.0))
    assert (score.revision, score.value, score.components) == (1, 2.0, {"reward": 1.0, "turns": 1.0})


def test_a_revision_in_the_batch_of_its_trajectory_gives_the_same_score() -> None:
    batch = [make_trajectory("e1", reward=None), make_revision("e1", 1.0)]
    together = scoring(RewardConfig(), component("turns")).outputs(batch)
    apart = scoring(RewardConfig(), component("turns")).feed(*batch)
    assert [out.record for out in together] == apart
    assert [score.outcome for score in apart] == ["missing", "scored"]


def test_a_reward_that_comes_by_a_revision_came_after_the_episode() -> None:
    stepper = scoring()
    (first,) = stepper.feed(make_trajectory("e1", reward=None, closed_by="inactivity"))
    assert (first.closed_by, first.is_rewarded_after) == ("inactivity", False)
    (score,) = stepper.feed(make_revision("e1", 1.0, new=("r0",)))
    assert (score.closed_by, score.is_rewarded_after) == ("inactivity", True)


def test_a_reward_that_stays_where_another_is_withdrawn_came_before() -> None:
    stepper = scoring()
    stepper.feed(make_trajectory("e1", reward=None, closed_by="inactivity"))
    withdrawn = (Reward(event_id="gone", name="reward", value=0.0),)
    (score,) = stepper.feed(make_revision("e1", 1.0, withdrawn=withdrawn))
    assert not score.is_rewarded_after


def test_a_retracted_reward_makes_the_score_missing_again() -> None:
    stepper = scoring()
    stepper.feed(make_trajectory("e1", reward=1.0))
    (score,) = stepper.feed(make_revision("e1"))
    assert (score.outcome, score.value) == ("missing", None)


def test_a_failed_component_stays_failed_when_rewards_are_revised() -> None:
    stepper = scoring(RewardConfig(), component("raise"))
    stepper.feed(make_trajectory("e1", reward=None))
    assert stepper.feed(make_revision("e1", 1.0))[0].outcome == "failed"


def test_an_exclusion_reaches_the_score() -> None:
    stepper = scoring()
    stepper.feed(make_trajectory("e1"))
    assert stepper.feed(make_revision("e1", 1.0, excluded=True))[0].excluded


def test_the_score_of_an_excluded_trajectory_repeats_no_words() -> None:
    stepper = scoring(RewardConfig(), component("raise"))
    (score, _) = stepper.feed(make_trajectory("e1", labels={"user": "ann"}))
    assert (score.labels, bool(score.error)) == ({"user": "ann"}, True)
    outputs = stepper.feed(make_revision("e1", 1.0, excluded=True))
    assert [(failed_score.labels, failed_score.error) for failed_score in outputs] == [({}, None)]


def test_a_trajectory_is_remembered_as_long_as_the_logged_settings_say() -> None:
    stepper = scoring()
    stepper.feed(make_trajectory("e1"), make_config("assembly", AssemblyConfig(late_horizon_ms=10_000)))
    stepper.restore()
    stepper.tick(9)
    assert [score.value for score in stepper.feed(make_revision("e1", 0.5))] == [0.5]
    stepper.tick(10)
    assert reasons(stepper.feed(make_revision("e1", 1.0))) == ["orphaned_reward"]


def test_a_trajectory_in_front_of_its_tick_is_remembered_from_its_own_time() -> None:
    stepper = scoring()
    stepper.tick()
    config = make_config("assembly", AssemblyConfig(late_horizon_ms=10_000))
    stepper.feed(config, make_trajectory("e1", assembled_at_ms=START_MS + 5_000))
    stepper.tick(14)
    assert [score.value for score in stepper.feed(make_revision("e1", 0.5))] == [0.5]
    stepper.tick(1)
    assert reasons(stepper.feed(make_revision("e1", 1.0))) == ["orphaned_reward"]


def test_a_failed_score_is_dropped_at_the_time_of_its_record_however_far_the_stage_is() -> None:
    times_ms = []
    for seconds in (0, 5):
        stepper = scoring(component("raise"))
        stepper.tick(seconds)
        _, first = stepper.feed(make_trajectory("e1", assembled_at_ms=START_MS + 5_000))
        _, revised = stepper.feed(dataclasses.replace(make_revision("e1", 1.0), revised_at_ms=START_MS + 6_000))
        times_ms.append((first.dropped_at_ms - START_MS, revised.dropped_at_ms - START_MS))
    assert times_ms == [(5_000, 6_000)] * 2


def test_a_revision_of_a_forgotten_trajectory_is_counted() -> None:
    stepper = scoring()
    stepper.feed(make_trajectory("e1"))
    stepper.tick(100)
    assert [key for key in stepper.changelog if key.startswith(b"score")] == []
    assert reasons(stepper.feed(make_revision("e1", 1.0))) == ["orphaned_reward"]


@pytest.mark.parametrize("is_in_batch", [False, True])
def test_a_trajectory_behind_the_tick_that_forgets_it_is_asked_about_again(is_in_batch: bool) -> None:
    stepper, again = scoring(), make_trajectory("e1", reward=0.5)
    ticks = [make_tick(number, stream_time_ms=START_MS + number * 50_000) for number in (1, 2, 3)]
    first, batch = make_trajectory("e1"), [*ticks, again]
    if not is_in_batch:
        stepper.feed(first)
    outputs = stepper.outputs([first, *batch] if is_in_batch else batch)
    assert outputs[-1].record.value == 0.5


def test_a_configuration_holds_from_its_record_on_within_a_batch() -> None:
    stepper = scoring()
    new = ScoringConfig(rewards=(component("half"),))
    outputs = stepper.outputs([make_trajectory("e1"), make_config("scoring", new), make_trajectory("e2")])
    assert [out.record.components for out in outputs] == [{"reward": 1.0}, {"half": 0.5}]
    assert outputs[0].record.reward_version != outputs[1].record.reward_version


def test_an_unregistered_reward_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="no function 'nobody'; there are copied, exact_match, feedback"):
        ScoringStage(ScoringConfig(rewards=(RewardConfig(type="nobody"),)), keep_ms=1)


def test_a_missing_function_of_the_logs_configuration_names_its_origin() -> None:
    stepper = scoring()
    other = ScoringConfig(rewards=(RewardConfig(type="theirs"),))
    with pytest.raises(ConfigurationError, match=r"no function 'theirs'.*The log has this configuration from a worker"):
        stepper.outputs([make_config("scoring", other)])


def _count_earlier(trajectory: Trajectory, context: RewardContext) -> TurnValues:
    value = sum(turn.value or 0.0 for turn in context.earlier) * 10 + len(trajectory.rewards)
    return average_turns(
        [TurnReward(turn_event_id="t", component=context.name, value=value, confidence=1.0, event_id="r")]
    )


@pytest.mark.parametrize("quick", [False, True])
def test_every_split_into_batches_scores_the_same(quick: bool) -> None:
    registry = {
        **REGISTRY,
        "earlier": RewardFunction(_count_earlier, quick=quick, reads_feedback=True),
        "other": RewardFunction(lambda trajectory, context: 3.0, quick=quick),
    }
    rewards = (component("earlier"),)
    other = make_config("scoring", ScoringConfig(rewards=(*rewards, component("other"))))
    records = [
        make_trajectory("e1", reward=1.0), make_revision("e1", 1.0, 2.0), make_revision("e1", 0.5, revision=2), other,
        make_tick(60, stream_time_ms=START_MS + 60_000), make_revision("e1", 0.5, 1.0, revision=3),
        make_tick(200, stream_time_ms=START_MS + 200_000), make_trajectory("e1", reward=0.5), make_revision("e1", 2.0),
    ]  # fmt: skip
    outcomes = set()
    for batches in splits(records):
        stage = ScoringStage(ScoringConfig(rewards=rewards), keep_ms=100_000, registry=registry, attempts=1)
        stepper = Stepper(stage)
        stepper.tick()
        outputs = [repr(out) for batch in batches for out in stepper.outputs(batch)]
        outcomes.add((stage.answered, *outputs))
    assert len(outcomes) == 1
