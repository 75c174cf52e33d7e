"""A small log with known answers: nine episodes, three groups, one batch, one step.

e1–e4 and e5, e6, e9 reach groups g1, g2, g3; g2 has no signal; e7 cannot be trained; e8 still waits for its group.
The step trains e1, e2 (lag 0) and e5, e6 (lag 1), and drops e9 as stale.
"""

from dataclasses import replace
from typing import Any

from rollbus.schemas.ids import event_id, trajectory_id
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.records.delivery import DeliveryCommand, EpisodeObserved, PolicyDecision
from rollbus.schemas.records.drops import Drop, ProducerReport
from rollbus.schemas.records.groups import (
    ClosedGroup,
    CurriculumState,
    Group,
    ResampleRequested,
    StepOutcome,
    TrainingBatch,
)
from rollbus.schemas.records.replays import ReplayManifest, ReplayRange, StageDigest
from rollbus.schemas.records.steps import (
    DroppedMember,
    Evaluation,
    StepCompleted,
    StepFailed,
    StepSkipped,
    StepStarted,
    TrainedMember,
)
from rollbus.schemas.records.trajectories import Reward, RewardRevised, TurnReward
from tests.builders import (
    MINUTE_MS,
    START_MS,
    make_alias,
    make_alias_reward,
    make_command,
    make_episode,
    make_excluded,
    make_group,
    make_letter,
    make_member,
    make_outcome,
    make_score,
    make_tick,
    make_tool,
    make_trajectory,
    make_version,
)

EPISODES = tuple(f"e{number}" for number in range(1, 10))
REWARDS = {"e1": 0.0, "e2": 1.0, "e3": 1.0, "e4": 1.0, "e5": 0.0, "e6": 1.0, "e7": 0.5, "e8": 1.0, "e9": 1.0}
VERSIONS = {"e5": 0, "e6": 0, "e9": 0}
"""The other episodes were sampled by version 1."""
GROUPS = {"g1": ("e1", "e2"), "g2": ("e3", "e4"), "g3": ("e5", "e6", "e9")}

THANKS_OF_USER = TurnReward(turn_event_id=event_id("e1", "w1", 1), component="style", value=0.5, signal="thanks")

Record = tuple[str, str, Any]
"""Topic, key, record."""


def version_of(episode: str) -> int:
    return VERSIONS.get(episode, 1)


def user_of(episode: str) -> str:
    """Odd episodes are Ada's, even ones Bob's."""
    return "ada" if int(episode[1:]) % 2 else "bob"


def story() -> list[Record]:
    """Return every record of the log, each type of the registry at least once, in the order of the flow."""
    return [*_events(), *_trajectories(), *_run(), *_ledger(), *_operations()]


def _events() -> list[Record]:
    records: list[Record] = [("episode-events", "", make_tick(1))]
    for episode in EPISODES:
        events = make_episode(episode, reward=REWARDS[episode], turns=2, version=version_of(episode))
        records += [("episode-events", episode, event) for event in events]
    records.append(("episode-events", "e7", make_tool("e7", 9)))
    records.append(("episode-events", "e7", replace(make_excluded("e7"), writer_id="w1", sequence=10)))
    records.append(("aliases", "ticket-1", make_alias("ticket-1", "e1")))
    records.append(("aliases", "ticket-1", make_alias_reward("ticket-1", 1.0)))
    return records


def _trajectories() -> list[Record]:
    records: list[Record] = []
    for episode in EPISODES:
        trainable = episode != "e7"
        trajectory = make_trajectory(
            episode,
            reward=REWARDS[episode],
            labels={"user": user_of(episode)},
            trainable=trainable,
            untrainable_reason=None if trainable else "no_logprobs",
        )
        records.append(("trajectories", "example:play:x1", trajectory))
        if trainable:
            score = make_score(
                trajectory_id(episode),
                REWARDS[episode],
                version=version_of(episode),
                episode_id=episode,
                labels={"user": user_of(episode)},
                components={"reward": REWARDS[episode], "style": 0.5},
                turn_rewards=(THANKS_OF_USER,) if episode == "e1" else (),
            )
            records.append(("scores", "example:play:x1", score))
    revised = RewardRevised(
        trajectory_id=trajectory_id("e8"),
        episode_id="e8",
        group_hint="example:play:x1",
        revision=1,
        rewards=(Reward(event_id="r-e8-late", name="reward", value=0.25),),
        revised_at_ms=START_MS + MINUTE_MS,
    )
    return [*records, ("trajectories", "example:play:x1", revised)]


def groups() -> list[Group]:
    groups_of_story = []
    for name, episodes in GROUPS.items():
        rewards = [REWARDS[episode] for episode in episodes]
        members = tuple(
            make_member(trajectory_id(episode), REWARDS[episode], version=version_of(episode), episode_id=episode)
            for episode in episodes
        )
        groups_of_story.append(make_group(name, rewards, members=members))
    return groups_of_story


def batch() -> TrainingBatch:
    first, _, third = groups()
    return TrainingBatch(
        batch_hash="b0",
        run_id="main",
        model="agent",
        number=0,
        window=0,
        groups=(first, third),
        newest_policy_version=1,
        cut_at_ms=START_MS + 2 * MINUTE_MS,
    )


def _run() -> list[Record]:
    window = CurriculumState(
        run_id="main",
        window=0,
        mode="harness",
        percentile=0.5,
        last_expansion_window=-1,
        total_groups=2,
        seen_group_ids=("g1", "g2", "g3"),
        admitted_group_ids=("g1", "g3"),
        reward_mean=0.75,
        closed_at_ms=START_MS + MINUTE_MS,
    )
    config = ConfigApplied(stage="grouping", run_id="main", config_hash="c1", content="{}")
    request = ResampleRequested(
        episode_id="r1",
        run_id="main",
        trajectory_id=trajectory_id("e1"),
        attempt=1,
        task="play",
        requested_at_ms=START_MS,
        useful_until_ms=START_MS + MINUTE_MS,
    )
    return [
        ("run-log", "main", config),
        ("run-log", "main", make_command("pause")),
        ("resample-requests", "r1", request),
        ("closed-groups", "g1", ClosedGroup(group=groups()[0])),
        *(("run-log", "main", group) for group in groups()),
        ("curriculum", "main", window),
        ("batches", "main", batch()),
    ]


def _ledger() -> list[Record]:
    same: dict[str, Any] = {"run_id": "main", "model": "agent", "step": 1, "batch_hash": "b0", "batch_number": 0}
    trained = tuple(
        TrainedMember(
            trajectory_id=trajectory_id(episode),
            group_id=group,
            lag=1 - version_of(episode),
            advantage=0.5,
            sampled_tokens=2,
        )
        for group, episode in (("g1", "e1"), ("g1", "e2"), ("g3", "e5"), ("g3", "e6"))
    )
    started_step = StepStarted(**same, attempt=1, base_version=1, started_at_ms=START_MS + 3 * MINUTE_MS)
    failed = StepFailed(
        **same,
        attempt=1,
        base_version=1,
        error_class="UnavailableError",
        message="no answer",
        final=False,
        failed_at_ms=START_MS + 3 * MINUTE_MS + 1,
    )
    completed = StepCompleted(
        **same,
        base_version=1,
        policy_version=2,
        trained=trained,
        dropped=(DroppedMember(trajectory_id=trajectory_id("e9"), group_id="g3", reason="stale"),),
        metrics={"loss": 0.25, "entropy": 1.5},
        started_at_ms=START_MS + 3 * MINUTE_MS,
        completed_at_ms=START_MS + 4 * MINUTE_MS,
    )
    skipped = StepSkipped(
        **(same | {"step": 2, "batch_hash": "b1", "batch_number": 1}),
        base_version=2,
        reason="nothing_to_train",
        started_at_ms=START_MS + 5 * MINUTE_MS,
        completed_at_ms=START_MS + 5 * MINUTE_MS,
    )
    outcome: StepOutcome = make_outcome(batch(), base=1)
    serving = make_version(2, 1, step=1, batch_hash="b0", changed_at_ms=START_MS + 4 * MINUTE_MS)
    evaluation = Evaluation(
        evaluation_id="ev1",
        model="agent",
        policy_version=2,
        run_id="main",
        name="held-out",
        episodes=800,
        metrics={"win": 0.55, "win_low": 0.5, "win_high": 0.6},
        set_hash="set-1",
        evaluated_at_ms=START_MS + 6 * MINUTE_MS,
    )
    return [
        *(("training-steps", "main", record) for record in (started_step, failed, completed, skipped)),
        ("run-log", "main", outcome),
        ("run-log", "main", make_version(1, 0, state="serving")),
        ("run-log", "main", serving),
        ("policy-versions", "agent", serving),
        ("delivery-log", "main", serving),
        *_delivery(),
        ("evaluations", "main", evaluation),
    ]


def _delivery() -> list[tuple[str, str, Any]]:
    """An episode, a word of the operator, and the decision that follows."""
    observed = EpisodeObserved(
        run_id="main", trajectory_id="t1", episode_id="e1", task="play", first_seen_ms=START_MS, served_versions=(2,)
    )
    command = DeliveryCommand(
        run_id="main", command="promote", version=2, command_id="d1", seen_decision=0, reason="it is good"
    )
    decision = PolicyDecision(
        model="agent",
        run_id="main",
        number=1,
        action="promote",
        version=2,
        serving=2,
        reason="operator",
        detail="it is good",
        numbers={"reward.effect": 0.25, "reward.low": 0.125, "reward.high": 0.375, "reward.canary_episodes": 40.0},
        decided_at_ms=START_MS + 6 * MINUTE_MS,
    )
    return [
        ("delivery-log", "main", observed),
        ("delivery-log", "main", command),
        ("policy-decisions", "agent", decision),
    ]


def _operations() -> list[Record]:
    def drop(unit: Any, unit_id: str, reason: str, stage: str, run_id: str | None, *episodes: str) -> Record:
        record = Drop(
            unit=unit,
            unit_id=unit_id,
            reason=reason,
            stage=stage,
            run_id=run_id,
            trajectory_ids=tuple(trajectory_id(episode) for episode in episodes),
            detail=f"{reason} at {stage}",
            dropped_at_ms=START_MS + 2 * MINUTE_MS,
        )
        return "drops", unit_id, record

    letter = make_letter(key=b"k\xff", value=b"\x00\xff\xfe")
    report = ProducerReport(producer="web", writer_id="w1", counters={"sent": 40}, reported_at_ms=START_MS)
    part = ReplayRange(topic="episode-events", partition=0, from_offset=0, to_offset=40)
    replayed = ReplayManifest(
        name="fixed",
        namespace="replay-fixed.",
        source_namespace="rollbus.",
        state="complete",
        stages=("assembly",),
        ranges=(part,),
        digests=(StageDigest(stage="assembly", records_in=40, records_out=9, dead_letters=0, digest="abc"),),
        records={"trajectories": 9},
        started_at_ms=START_MS,
    )
    picked = [
        DataSetMember(
            data_set="gold",
            trajectory_id=trajectory_id(episode),
            episode_id=episode,
            is_member=is_member,
            changed_at_ms=START_MS + at,
        )
        for at, (episode, is_member) in enumerate([("e1", True), ("e2", True), ("e2", False), ("e5", True)])
    ]
    return [
        drop("group", "g2", "no_signal", "curriculum", "main", "e3", "e4"),
        drop("trajectory", trajectory_id("e7"), "untrainable", "scoring", None, "e7"),
        drop("trajectory", trajectory_id("e9"), "stale", "trainer", "main", "e9"),
        drop("event", event_id("e1", "w1", 77), "late_event", "assembly", None),
        ("dead-letters", "k", letter),
        ("producer-reports", "web", report),
        ("replays", "fixed", replayed),
        *(("data-sets", "gold", member) for member in picked),
    ]
