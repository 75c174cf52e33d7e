"""Groups, curriculum windows and training batches: the records of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollbus.schemas.records.events import Message
from rollbus.schemas.records.trajectories import Location

GroupClosedBy = Literal["full", "window", "single"]
StepState = Literal["completed", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One trajectory of a group, with the advantage that is trained."""

    trajectory_id: str
    episode_id: str
    location: Location
    reward: float
    advantage: float
    components: Mapping[str, float] = field(default_factory=dict)
    min_policy_version: int
    max_policy_version: int
    tokens: int = 0
    sampled_tokens: int = 0
    score_revision: int = 0
    resampled: bool = False
    expected: float | None = None
    """The reward that a single attempt is held against; None in a group whose members are compared."""
    expected_from: str = ""
    """Of which earlier rewards `expected` says most: `example`, `opening` or `task`."""
    expected_turn: float | None = None
    """The reward that each rewarded turn of a single attempt is held against, with `credit: turn`."""
    first_seen_ms: int = 0
    """Stream time when the first event of its episode came."""
    principal: str = ""
    """Who recorded it, as its trajectory has it; batches take the groups of principals in turn."""
    turn_advantages: Mapping[str, float] = field(default_factory=dict)
    """By event id of the turn, if turns have advantages of their own; empty if all have `advantage`, else `advantage`
    is their mean."""

    hints: Mapping[str, str] = field(default_factory=dict)
    """By event id of a turn after which a hint was given: event id of the report that has the user's words, empty if
    the trajectory has them. The words are in the time-limited topics alone."""
    revised_at: Location | None = None
    """Of the `RewardRevised` with these reports; None if there are no hints, or the trajectory has them."""
    hints_at: Location | None = None
    """Of the `Score` with hints in a judge's own words, which come before the user's; None if there are none."""

    @property
    def advantages(self) -> tuple[float, ...]:
        """Return all advantages that are trained, in order of the turns' ids."""
        by_turn = self.turn_advantages
        return tuple(by_turn[turn_id] for turn_id in sorted(by_turn)) if by_turn else (self.advantage,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of the same task, compared with one another."""

    group_id: str
    """Hash of (run, group key, member trajectory ids)."""
    run_id: str
    """The Kafka key."""
    group_key: str
    """What the members share: explicit group, example or prompt; of a single attempt, what it would share."""
    model: str
    task: str
    example_id: str | None = None
    strategy: str
    """Of the run: `adaptive`, `by_example`, `by_prompt` or `single`."""
    advantage_kind: str
    """`mean`, `mean_std`, `unbiased_std`, `leave_one_out`, or `expected` for a single attempt."""
    members: tuple[GroupMember, ...]
    """Sorted by trajectory id."""
    reward_mean: float
    reward_std: float
    """Population standard deviation."""
    reward_min: float
    reward_max: float
    has_signal: bool
    """False if max − min is within the tolerance: no advantage, no gradient."""
    closed_by: GroupClosedBy
    closed_at_ms: int
    """Stream time."""
    reward_version: str = ""
    config_hash: str = ""

    @property
    def is_single(self) -> bool:
        """Whether this is one attempt that is held against an expected reward."""
        return self.closed_by == "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedGroup:
    """A group with its final members, before the reward functions over whole groups are called."""

    group: Group
    """With the rewards of the members' own scores; the group in the run's log has the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampleRequested:
    """A request for one more attempt at an opening that came once in traffic; writing it charges the budget."""

    episode_id: str
    """Of the attempt: hash of run, trajectory and number."""
    run_id: str
    trajectory_id: str
    """The attempt of production traffic to compare it with."""
    attempt: int
    """Counts from 1."""
    task: str
    example_id: str | None = None
    agent: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    """Without the version."""
    messages: tuple[Message, ...] = ()
    """The opening: the messages before the first completion."""
    requested_at_ms: int
    """Stream time."""
    useful_until_ms: int
    """Stream time when the group's window ends; an attempt that begins later has no use."""
    max_tokens: int | None = None
    """What the attempt may sample in all its calls, which is charged. None if the run sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumState:
    """The state of a run's curriculum after a window closed."""

    run_id: str
    window: int
    """Index of the window just closed, from 0."""
    mode: str
    percentile: float
    last_expansion_window: int
    """−1 before the first expansion."""
    total_groups: int | None = None
    """Groups with signal in the first window that had any; None before it."""
    seen_group_ids: tuple[str, ...] = ()
    admitted_group_ids: tuple[str, ...] = ()
    """In rank order."""
    rejected_group_ids: tuple[str, ...] = ()
    """Outside the percentile or the random subsample."""
    reward_mean: float | None = None
    """Mean reward of all groups of the window."""
    closed_at_ms: int
    """Stream time."""
    mode_state: str = ""
    """JSON of the state of other modes (difficulty per example)."""
    config_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """The ordered groups of one training step."""

    batch_hash: str
    """Hash of run, number, group ids, members and advantages."""
    run_id: str
    """The Kafka key."""
    model: str
    number: int
    """Counts batches of the run from 0."""
    window: int
    """Curriculum window of the newest group."""
    groups: tuple[Group, ...]
    newest_policy_version: int
    """Newest version that the curriculum knew of when it cut the batch."""
    cut_at_ms: int
    """Stream time."""
    config_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The trainer's answer to a batch, in the run's log, so that the curriculum can cut the next one."""

    run_id: str
    step: int
    batch_hash: str
    batch_number: int
    state: StepState
    base_version: int
    policy_version: int
    """New version; the base if nothing was trained."""
