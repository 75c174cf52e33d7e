"""What goes wrong on the way to a step, as rows in ClickHouse: one namespace in which each situation is once.

`main` reads the reward `reward`, and gets `thumbs`, late; `narrow` filters a task that no episode has; `other` trains a
model that the agent does not ask; `judged` has a canary, and a step of two principals.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.origin import Origin, Row
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.records.drops import Drop, DropReason, DropUnit, ProducerReport
from rollbus.schemas.records.steps import TrainedMember
from tests.builders import (
    make_alias_reward,
    make_episode,
    make_group,
    make_member,
    make_reward,
    make_score,
    make_started,
    make_step,
    make_trajectory,
    make_turn,
)
from tests.consumers.all_rows import rows_of

RUNS = [
    {"run_id": "main", "batching": {"groups_per_step": 16}},
    {"run_id": "narrow", "model": "small", "filter": {"tasks": ["refunds"], "models": ["agent"]}},
    {"run_id": "other", "model": "qwen"},
    {"run_id": "judged", "model": "canaries", "delivery": {"reward_low": 0, "reward_high": 1}},
]
TRAINER = {"serve": "after_evaluation"}
SCORING = {"rewards": [{"type": "feedback", "name": "reward"}]}
UNTRAINABLE: dict[str, Any] = {"model": "gpt-4o", "server": "https://api.openai.com", "prompt": None}
AGE_MS, STEP_MS = 1_800_000, 100
"""How old the first record is, and how much later the next one comes."""
LATE_MS = 3_000
SENTENCES = {
    "unapplied_settings": "the workers apply other settings than these, in `runs:`",
    "untrainable_turns": "4 of 26 turns cannot be trained: the server that answers as gpt-4o at https://api.openai.com "
    "gave no token ids",
    "unread_rewards": "5 reports are named 'thumbs', which no component reads (read: reward)",
    "late_rewards": "5 of 5 reports named 'thumbs' came too late for their score",
    "short_groups": "6 groups closed with 1.0 of 8 members on average",
    "other_prompts": "example 't-7' began with 3 prompts besides its group's",
    "too_many_reports": "2 reports do not count (too_many_reports), since one principal has more of them on an episode "
    "than `assembly: max_reports:`: reward 'thumbs' by source 'user' and principal 'stranger'",
    "outside": "calls that are in no episode, and so are not recorded: 3, counted by night-shift",
    "queue_full": "events that never reached Kafka (queue_full): 5, counted by day-shift, night-shift",
    "reward_not_allowed": "1 report does not count (reward_not_allowed)",
    "waiting_alias": "2 reports wait for an alias that no episode has, such as 'order-9'; what waits is given up",
    "waiting_episode": "1 report waits for an episode that has not begun, such as 'mistyped'",
    "share_without_bound": "2 principals recorded what was trained, and agent-7 has 75% of the absolute advantage",
    "outsized_episode": f"trajectory {trajectory_id('huge')} alone has 90% of the absolute advantage of step 1",
    "unsigned_evidence": "25 of 26 episodes are signed by nobody",
    "held_canary": "version 3 is held as the canary: one_principal:reward, unbalanced",
    "unbalanced": "17 episodes do not count for or against version 3 (unbalanced)",
    "no_signal": "2 of 3 groups have equal rewards",
    "other_model": "run other trains qwen: the learner serves no version that the agent asked for",
    "not_targeted": "nothing can train: 26 of 29 episodes are left out, since model 'agent' is not of this run",
    "empty_filter": "the filter of run narrow (tasks refunds, models agent) matches none of 26 episodes",
    "open": "3 are open, the oldest for",
    "forecast": "1 of 16 groups: the first step waits, since no trainer of run main runs",
}
"""Each situation, and the beginning of what is said of it."""


def records() -> Iterator[tuple[str, Any]]:
    """Yield topic and record, in the order of their times."""
    yield "run-log", ConfigApplied(stage="grouping", run_id="main", config_hash="of another file", content="{}")
    for number in range(3):
        yield "episode-events", make_started(f"open-{number}")
    for number in range(4):
        yield from _lose(f"gpt-{number}", DropReason.UNTRAINABLE, verdict="no_token_ids")
    for number in range(5):
        yield from _lose(f"late-{number}", DropReason.SCORE_MISSING)
    for number in range(6):
        yield from _lose(f"lone-{number}", DropReason.INCOMPLETE_GROUP, unit="group", group=f"short-{number}")
    for number in range(3):
        yield from _lose(f"prompt-{number}", DropReason.GROUP_MISMATCH, example_id="t-7", prompt_hash=f"p-{number}")
    for name, rewards in (("flat", (1.0, 1.0)), ("even", (0.0, 0.0)), ("good", (0.0, 1.0))):
        yield from _group(name, rewards)
    for number in range(2):
        yield from _episode(f"wait-{number}")
    for number in range(5):
        yield "episode-events", replace(make_reward(f"late-{number}", sequence=9), name="thumbs")
        silence = make_reward(f"late-{number}", None, name="next_turn", signal="silence", source="user")
        yield "episode-events", silence
    for number in range(2):
        yield "aliases", make_alias_reward("order-9", key=f"user-{number}")
    found = make_alias_reward("order-1")
    yield "aliases", found
    yield "episode-events", replace(found, episode_id="good-0", root_episode_id="good-0")
    yield "episode-events", make_reward("mistyped", sequence=9)
    for number in range(2):
        detail = "reward 'thumbs' by source 'user' and principal 'stranger', episode late-1"
        yield "drops", _refusal(f"report-{number}", DropReason.TOO_MANY_REPORTS, detail)
    yield (
        "drops",
        _refusal("report", DropReason.REWARD_NOT_ALLOWED, "reward 'correct' by source 'user', episode late-2"),
    )
    for writer, producer, counters in [
        ("w1", "night-shift", {"calls_outside_episode": 1, "turns_trainable": 4}),
        ("w1", "night-shift", {"calls_outside_episode": 3, "events_dropped.queue_full": 3}),
        ("w2", "day-shift", {"events_dropped.queue_full": 2, "calls_outside_episode": 0}),
    ]:
        at_ms = sum(counters.values())
        yield (
            "producer-reports",
            ProducerReport(producer=producer, writer_id=writer, counters=counters, reported_at_ms=at_ms),
        )
    yield "training-steps", make_step(1, run_id="judged", model="canaries", trained=tuple(_trained_members()))
    for number, (action, reason) in enumerate(
        [("canary", "newest_candidate"), ("hold", "unbalanced"), ("hold", "one_principal:reward")], 1
    ):
        yield "policy-decisions", _decision(number, action, reason)


def _trained_members() -> Iterator[TrainedMember]:
    """Yield the members of eight groups: two that signed otherwise, and one whose reward is of another size."""
    signed = [("good-0", -0.25, "good"), ("good-1", 0.75, "good"), ("huge", 9.0, "huge")]
    for name, advantage, group in [*signed, *((f"m{number}", 0.001, f"g{number}") for number in range(6))]:
        yield TrainedMember(
            trajectory_id=trajectory_id(name), group_id=group, lag=0, advantage=advantage, sampled_tokens=1
        )


def _refusal(name: str, reason: DropReason, detail: str) -> Drop:
    return Drop(unit="event", unit_id=name, reason=reason, stage="assembly", detail=detail, dropped_at_ms=0)


def _decision(number: int, action: Any, reason: str) -> PolicyDecision:
    numbers = {"unbalanced": 17.0} if action == "hold" else {}
    return PolicyDecision(
        model="canaries",
        run_id="judged",
        number=number,
        action=action,
        version=3,
        serving=2,
        canary=3,
        share=0.01,
        reason=reason,
        numbers=numbers,
        decided_at_ms=0,
    )


def _episode(name: str, *, verdict: str | None = None, **of_score: Any) -> Iterator[tuple[str, Any]]:
    for event in make_episode(name, reward=None):
        is_turn = type(event).__name__ == "TurnRecorded"
        turn = make_turn(name, **UNTRAINABLE, untrainable=verdict) if verdict else event
        yield "episode-events", turn if is_turn else event
    trained: dict[str, Any] = {"trainable": verdict is None, "untrainable_reason": verdict}
    principal = "agent-7" if name == "good-1" else ""
    yield "trajectories", replace(make_trajectory(name, reward=None, **trained), principal=principal)
    value = of_score.pop("value", 0.5)
    yield "scores", make_score(trajectory_id(name), value, episode_id=name, **trained, **of_score)
    for run in ("narrow", "other", "judged"):
        yield "drops", _drop(name, DropReason.NOT_TARGETED, "trajectory", run)


def _lose(
    name: str, reason: DropReason, *, unit: DropUnit = "trajectory", group: str = "", **fields: Any
) -> Iterator[tuple[str, Any]]:
    yield from _episode(name, **({"value": None, "outcome": "missing"} if reason == "score_missing" else {}), **fields)
    drop = _drop(name, reason, unit, "main")
    yield "drops", replace(drop, unit_id=group) if group else drop


def _group(name: str, rewards: tuple[float, ...]) -> Iterator[tuple[str, Any]]:
    members = [f"{name}-{number}" for number in range(len(rewards))]
    for member, reward in zip(members, rewards, strict=True):
        yield from _episode(member, value=reward)
    has_signal = len(set(rewards)) > 1
    yield (
        "run-log",
        make_group(
            name,
            rewards,
            has_signal=has_signal,
            members=tuple(
                replace(make_member(trajectory_id(member), reward), episode_id=member)
                for member, reward in zip(members, rewards, strict=True)
            ),
        ),
    )
    if not has_signal:
        ids = tuple(trajectory_id(member) for member in members)
        yield "drops", replace(_drop(name, DropReason.NO_SIGNAL, "group", "main"), unit_id=name, trajectory_ids=ids)


def _drop(name: str, reason: DropReason, unit: DropUnit, run: str) -> Drop:
    trajectory = trajectory_id(name)
    return Drop(
        unit=unit,
        unit_id=trajectory,
        reason=reason,
        stage="grouping",
        run_id=run,
        trajectory_ids=(trajectory,),
        detail="model 'agent' is not of this run" if run == "other" else "",
        dropped_at_ms=0,
    )


def write_situations(client: ClickHouse, namespace: str, now_ms: int) -> None:
    """Write all rows, as if they had come within the last half hour."""
    tables: dict[str, list[Row]] = {}
    at_ms = now_ms - AGE_MS
    for offset, (topic, record) in enumerate(records()):
        at_ms += LATE_MS if getattr(record, "name", "") == "thumbs" else STEP_MS
        for table, row in rows_of(record, Origin(namespace, topic, 0, offset, at_ms)):
            tables.setdefault(table, []).append(row)
    for table, rows in tables.items():
        client.insert(table, rows)
