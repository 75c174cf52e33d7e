"""Configuration of the stages and of a run: what `ConfigApplied` carries as JSON.

Parsed once at the edge, frozen afterwards; an unknown key is an error. Times are stream time in ms.
"""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rollbus.schemas.ids import content_hash, join_parts, without_version

MINUTE_MS = 60_000
SIGNAL_TOLERANCE = 1e-9
"""A group has signal if its rewards differ by more: equal ones differ by less, after a sum in another order."""
PassDown = Literal["none", "inherit", "split", "by_name"]
Share = Annotated[float, Field(gt=0, le=1)]


def _require_no_version(model: str) -> str:
    if without_version(model) != model:
        raise ValueError(f"{model!r} has an `@`, where the version of a model begins; write the name before it alone")
    return model


ModelName = Annotated[str, AfterValidator(_require_no_version)]
"""Of a model without its version, as scores have it."""


def _is_empty(value: Any) -> bool:
    """Leave a newer setting that is not used out of the hash, so that recorded outputs keep theirs in a replay."""
    return not value


def _is_one(value: Any) -> bool:
    return bool(value == 1)


class Config(BaseModel):
    """Base of every configuration: frozen, strict about names, of finite numbers, hashed by content."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def config_hash(self) -> str:
        """Return the hash by which records name this configuration."""
        return content_hash(self.model_dump(mode="json"))


class AssemblyConfig(Config):
    """Episode events to trajectories."""

    inactivity_ms: int = Field(default=30 * MINUTE_MS, gt=0)
    """An episode without an event for this time is finished as it is."""
    pause_ms: int = Field(default=7 * 24 * 60 * MINUTE_MS, gt=0)
    """How long a paused episode, such as one that asked a person, waits for the part that resumes it."""
    late_horizon_ms: int = Field(default=24 * 60 * MINUTE_MS, ge=0)
    """How long after assembly rewards still become revisions."""
    target_functions: tuple[str, ...] = ()
    """Turns of other functions are context only; empty means all."""
    target_model: ModelName | None = None
    """Turns of other models are context only; None means all."""
    min_episode_length: int = Field(default=1, ge=1)
    """Fewest turns a trajectory must have."""
    include_tool_calls: bool = True
    """False leaves tool calls out of trajectories."""
    reward_sources: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Which sources may set, supersede and retract the reward of a name; `*` is every name that is not listed.
    Any source may set a name without a rule."""
    signed_sources: tuple[str, ...] = Field(default=(), exclude_if=_is_empty)
    """Sources whose reports need their signature; who writes the name of any other source is believed."""
    max_reports: int = Field(default=10_000, ge=1)
    """Reports on an episode, of all names, by one principal; what is more is dropped as `too_many_reports`."""
    max_reports_per_name: int = Field(default=1_000, ge=1)
    """Reports on an episode of one name by one principal, on its turns too."""
    silence_ms: int | None = Field(default=None, gt=0, exclude_if=_is_empty)
    """A conversation without a further message for so long gives its last turn the signal `silence`; None: never."""
    pass_down: dict[str, PassDown] = Field(default_factory=dict, exclude_if=_is_empty)
    """How a root's reward of a name reaches its sub-agents' episodes, by name; `*` is every name that is not listed.
    `inherit` gives each the root's value, `split` divides it by their number, `by_name` gives an agent's episodes the
    root's report `<name>.<agent>`. An episode's own report of a name outweighs what is passed down."""

    @property
    def gap_grace_ms(self) -> int:
        """How long assembly waits for missing events after EpisodeEnded; what is late by a minute was lost."""
        return min(MINUTE_MS, self.inactivity_ms)

    @model_validator(mode="after")
    def _by_name_has_a_name(self) -> "AssemblyConfig":
        if self.pass_down.get("*") == "by_name":
            raise ValueError("pass_down: by_name needs the name of a reward; `*` can be none, inherit or split")
        return self

    def allows(self, reward: str, source: str, signer: str | None) -> bool:
        """Say whether a source may set a reward by a report that this signer, if any, has signed."""
        if source in self.signed_sources and signer != source:
            return False
        sources = self.reward_sources.get(reward, self.reward_sources.get("*"))
        return sources is None or source in sources


CONCURRENCY = 16
"""Calls of reward functions in flight per partition: a judge answers several at once."""
EVERY_NAME = "*"
"""Option `report` of `feedback` that reads the reports of all names."""


class ComponentConfig(Config):
    """One component of the score: of a trajectory, or of the members of a group."""

    type: str = "feedback"
    """Name of a registered reward function."""
    name: str = "reward"
    """Name of the component; for `feedback` also the name of the report it reads."""
    weight: float = 1.0
    """0 only measures: the score does without its value, and without its success."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Of one call of the function."""
    options: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Handed to the function: docs/rewards.md."""


class RewardConfig(ComponentConfig):
    """One component of the score of a trajectory."""

    share: float = Field(default=1.0, gt=0, le=1, exclude_if=_is_one)
    """Of the trajectories, chosen by their ids, that the function is called for; below 1 only with weight 0."""

    @model_validator(mode="after")
    def _a_sample_is_only_measured(self) -> "RewardConfig":
        if self.share < 1 and self.weight:
            raise ValueError(f"reward {self.name}: share {self.share} leaves scores without a value; set weight 0")
        return self


class ScoringConfig(Config):
    """Trajectories to scores."""

    rewards: tuple[RewardConfig, ...] = (RewardConfig(options={"report": EVERY_NAME}),)
    """Without this setting every reported reward counts, whatever its name."""
    clip_low: float | None = None
    clip_high: float | None = None
    """Bounds of the weighted sum; a score outside is the bound."""
    concurrency: int = Field(default=CONCURRENCY, ge=1)
    """Calls of reward functions in flight per partition, of those over groups likewise."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> "ScoringConfig":
        names = [reward.name for reward in self.rewards]
        if len(names) != len(set(names)):
            raise ValueError(f"rewards need different names, got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _clips_leave_room(self) -> "ScoringConfig":
        if self.clip_low is not None and self.clip_high is not None and self.clip_low >= self.clip_high:
            raise ValueError(f"clip_low {self.clip_low} is not below clip_high {self.clip_high}: all scores are equal")
        return self


class FilterConfig(Config):
    """Which scores belong to a run; empty fields admit all."""

    tasks: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[ModelName, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    without_tokens: bool = False
    """Also those that lack only token ids or log-probs, and groups of equal rewards: for a backend of your own that
    trains on messages."""
    unfinished: Literal["rewarded_after", "all", "none"] = Field(
        default="rewarded_after", exclude_if=lambda value: value == "rewarded_after"
    )
    """Which episodes without an end are taken: those that got a reward after their last turn, all, or none."""


class GroupingConfig(Config):
    """Scores to groups."""

    strategy: Literal["adaptive", "by_example", "by_prompt", "single"] = "adaptive"
    """`adaptive` compares attempts at one example where several come, and holds an attempt that comes once against what
    its example and its task earned before; `single` does that with every attempt."""
    similar_by: str | None = None
    """Label whose value names openings alike, for what is expected of an attempt; None compares the openings' words."""
    same_prompt: bool = False
    """True: an attempt whose prompt or tools differ from those of its group's first is dropped as `group_mismatch`."""
    group_size: int = Field(default=8, ge=1)
    """Attempts with which a group closes."""
    min_group_size: int = Field(default=2, ge=1)
    """Fewest attempts of a group that closes short: those of a smaller one are dropped as `incomplete_group`."""
    window_ms: int = Field(default=10 * MINUTE_MS, gt=0)
    """Stream time after its first score when a group closes short."""
    reward_wait_ms: int = Field(default=24 * 60 * MINUTE_MS, ge=0)
    """How long a score without a reward waits for one. It holds up no other score."""
    reward_grace_ms: int | None = Field(default=None, ge=0)
    """How long each score waits even if it has a reward; None learns it for each task from how late
    rewards change, up to `window_ms`."""
    advantage: Literal["mean", "mean_std", "unbiased_std", "leave_one_out"] = "leave_one_out"
    """Reward less the group's mean, as it is or divided by the deviation, or less the mean of the others."""
    credit: Literal["trajectory", "turn"] = Field(default="trajectory", exclude_if=lambda value: value == "trajectory")
    """Who earned the rewards of single turns: every token of the trajectory alike, or the turns themselves."""
    turn_discount: float = Field(default=0.0, ge=0, le=1, exclude_if=_is_empty)
    """With `credit: turn`, what a turn gets of the next turn's reward; of the one after its square, and so on."""
    max_history_tokens: int | None = Field(default=None, gt=0)
    """Longer trajectories are dropped as `overlong` before the group mean."""
    rewards: tuple[ComponentConfig, ...] = ()
    """Reward functions over a whole group, called once it has closed; weighted, they add to the members' scores."""

    @model_validator(mode="after")
    def _sizes_agree(self) -> "GroupingConfig":
        if self.min_group_size > self.group_size:
            raise ValueError(f"min_group_size {self.min_group_size} is above group_size {self.group_size}")
        names = [reward.name for reward in self.rewards]
        if len(names) != len(set(names)):
            raise ValueError(f"rewards over groups need different names, got {', '.join(names)}")
        if self.rewards and self.credit == "turn":
            raise ValueError("rewards over groups are of whole trajectories; take `credit: trajectory`")
        if self.turn_discount and self.credit != "turn":
            raise ValueError(f"turn_discount {self.turn_discount:g} is of `credit: turn`")
        if self.rewards and self.strategy == "single":
            raise ValueError("strategy single makes groups of one, which no reward over groups can compare")
        return self


class CurriculumConfig(Config):
    """Groups to admitted groups.

    `harness` computes like the NeMo Agent Toolkit's harness. `pools` admits a share each of the easy, normal and hard
    problems. `advantage_range` admits groups with a large advantage. `surprise` admits the share that is furthest
    from what was expected, the furthest first.
    """

    mode: Literal["off", "harness", "pools", "advantage_range", "surprise"] = "off"
    groups_per_window: int = Field(default=64, ge=1)
    """Groups that are compared with one another."""
    window_span_ms: int | None = Field(default=None, gt=0)
    """Stream time after which a window closes with fewer; None waits for all."""
    initial_percentile: Share = 0.3
    """`harness`: the share of a window's groups that is admitted at first, those with the best mean reward."""
    increment_percentile: Share = 0.2
    """`harness`: by how much that share grows."""
    expansion_interval: int = Field(default=5, ge=1)
    """`harness`: windows between two growths."""
    min_reward_diff: float = 0.1
    """`harness`, `pools`: a group whose rewards differ by less is not admitted."""
    sort_ascending: bool = False
    """`harness`: True admits those with the worst mean reward first."""
    random_subsample: Share | None = None
    """`harness`: the share of the admitted groups that is kept."""
    seed: int = 0
    """Of what `harness` and `pools` choose by chance: the same in every replay."""
    hard_below: float = 0.25
    """`pools`: a problem is hard if the mean reward of its last group was below this, easy if above the other. Of what
    lies between all are admitted."""
    easy_above: float = 0.75
    hard_share: float = Field(default=0.2, ge=0, le=1)
    easy_share: float = Field(default=0.2, ge=0, le=1)
    """`pools`: the shares of the hard and the easy problems' groups that are admitted."""
    least_advantage: float = Field(default=0.0, ge=0)
    """`advantage_range`: a group of which no advantage is further from 0 than this is not admitted."""
    surprise_share: Share = Field(default=0.5, exclude_if=lambda value: value == 0.5)
    """`surprise`: the share of a window's groups that is admitted."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "CurriculumConfig":
        if self.hard_below > self.easy_above:
            raise ValueError(
                f"hard_below {self.hard_below:g} is above easy_above {self.easy_above:g}; give them in order"
            )
        return self


class BatchingConfig(Config):
    """Admitted groups to training batches."""

    groups_per_step: int = Field(default=16, ge=1)
    """Groups or single attempts of a training step."""
    batches_ahead: int = Field(default=1, ge=1)
    """Batches that may be open (cut, without an outcome)."""
    max_waiting_groups: int = Field(default=64, ge=1)
    """Admitted groups that may wait for a batch; beyond it the oldest are dropped as `superseded`, and those of
    a principal that takes more than its turn while others wait as `source_share`."""
    max_off_policy_steps: int = Field(default=4, ge=0)
    """Versions by which an attempt may be older than the one that its step begins with; older ones are dropped as
    `stale`."""
    max_share_per_source: dict[str, Share] = Field(default_factory=dict, exclude_if=_is_empty)
    """By label, such as `user`: most of a training step that the episodes with one value of it may be. The trainer
    drops what is more as `source_share`, and everything if there are fewer than 1 / share sources."""
    flush_ms: int | None = Field(default=10 * MINUTE_MS, gt=0)
    """Stream time that a group waits for others at most: then a batch is cut with fewer; None waits for all."""


class ResampleConfig(Config):
    """More attempts at openings that come once in traffic: limits per hour of stream time."""

    attempts_per_hour: int = Field(ge=0)
    """A strict limit, also over restarts of a worker; divided evenly among the partitions."""
    tokens_per_hour: int | None = Field(default=None, ge=0)
    """Sampled by attempts, a strict limit: each is charged all that it may sample until its real use is known."""
    tokens_per_attempt: int | None = Field(default=None, gt=0)
    """What one attempt may sample; None allows twice what the compared attempt sampled."""
    share: float | None = Field(default=None, gt=0)
    """Most attempts per trajectory of the run's traffic."""


class MetricConfig(Config):
    """Something of an episode, in addition to its reward, that a canary must not make worse."""

    of: Annotated[str, Field(pattern=r"^(rewarded|failed|tokens|latency_ms|tool_errors|component:.+)$")]
    """`rewarded`, `failed`, `tokens`, `latency_ms`, `tool_errors`, or `component:NAME` of a reward's component."""
    low: float = 0.0
    high: float = 1.0
    """Bounds; a value outside is counted as clipped, and taken as the bound."""
    goal: Literal["more", "less"]
    tolerance: float = Field(default=0.0, ge=0)
    """How much worse is not a reason to act, in the metric's own unit."""
    on_worse: Literal["quarantine", "hold", "notify"] = "quarantine"
    min_episodes: int = Field(default=1, ge=0, exclude_if=_is_one)
    """Of the canary, in which it is known, before each next step: what stopped coming is not proof that all is well."""

    def contradictions(self, components: Collection[str]) -> list[str]:
        """Return what in these settings cannot be meant."""
        wrong = []
        if self.low >= self.high:
            wrong.append(f"low {self.low} is not below high {self.high}")
        elif self.tolerance >= self.high - self.low:
            wrong.append(f"tolerance {self.tolerance} is the whole range: nothing would ever be worse")
        if self.component and self.component not in components:
            names = ", ".join(sorted(components)) or "none"
            wrong.append(f"`scoring: rewards:` has no such component, and it would never come; there are: {names}")
        return wrong

    @property
    def name(self) -> str:
        """Return the name under which decisions give its numbers."""
        return self.of

    @property
    def component(self) -> str:
        """Return the name of the reward's component; empty for what is none."""
        kind, _, name = self.of.partition(":")
        return name if kind == "component" else ""


ESTIMATES = "off-policy"
"""Name of the evaluations that `rollbus policy estimate` makes."""


class CheckConfig(Config):
    """An evaluation of a version that decides whether it may become the canary."""

    evaluation: str
    """Its name: that of a validation set, or `off-policy`."""
    metric: str
    goal: Literal["more", "less"] = "more"
    tolerance: float = Field(default=0.0, ge=0)
    """How much worse than the serving version's is not a reason to act, in the metric's own unit."""
    limit: float | None = None
    """Compare with this number instead: less is worse where the goal is `more`, and more where it is `less`."""
    on_worse: Literal["quarantine", "hold", "notify"] = "quarantine"
    if_refused: Literal["hold", "pass"] = "hold"
    """Where the evaluation says that nothing can be said, as an estimate does if the versions differ too much."""

    @property
    def name(self) -> str:
        """Return the name under which decisions give its numbers."""
        return join_parts(self.evaluation, self.metric)


COOL_DOWN_WAITS = 10
"""Of an episode for its rewards: ten minutes, with the default."""


class DeliveryConfig(Config):
    """New versions to a share of the episodes, and step by step to all."""

    steps: tuple[float, ...] = (0.01, 0.05, 0.25)
    """Shares of the episodes that the canary gets; after the last, all."""
    min_episodes: int = Field(default=200, ge=1)
    """Of the canary, with a reward, before the next step."""
    max_episodes: int = Field(default=20_000, ge=1)
    """A canary of which so many decide nothing is rejected."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Probability that a canary that is not worse in anything is stopped, however often it is looked at."""
    reward_low: float = 0.0
    reward_high: float = 1.0
    """Bounds of the score; a value outside is counted as clipped, and taken as the bound."""
    margin: float = Field(default=0.02, gt=0)
    """How much less reward still counts as not worse, in the reward's own unit."""
    wait_ms: int = Field(default=MINUTE_MS, ge=0)
    """An episode is counted so long after it was assembled at the latest, with the rewards that it has then."""
    max_share_per_principal: Share = Field(default=1.0, exclude_if=_is_one)
    """Most of an arm's episodes that one principal's may be, beyond the first ten; what is more does not count."""
    metrics: tuple[MetricConfig, ...] = (
        MetricConfig(of="failed", goal="less", tolerance=0.05),
        MetricConfig(of="rewarded", goal="more", tolerance=0.1, on_worse="hold"),
    )
    checks: tuple[CheckConfig, ...] = Field(default=(), exclude_if=_is_empty)
    """Of a candidate, before it becomes the canary."""

    @property
    def cool_down_ms(self) -> int:
        """After a version was stopped, no other becomes a canary for so long: its episodes are rewarded by then."""
        return COOL_DOWN_WAITS * self.wait_ms

    def contradictions(self, components: Collection[str]) -> list[str]:
        """Return what in these settings cannot be meant; `components` are those that scoring gives."""
        wrong, names = [], [metric.name for metric in self.metrics]
        if list(self.steps) != sorted(set(self.steps)) or not all(0 < step < 1 for step in self.steps or (0,)):
            wrong.append(f"steps must grow between 0 and 1, got {', '.join(map(str, self.steps)) or 'none'}")
        if self.reward_low >= self.reward_high:
            wrong.append(f"reward_low {self.reward_low} is not below reward_high {self.reward_high}")
        elif self.margin >= self.reward_high - self.reward_low:
            wrong.append(f"margin {self.margin} is the whole range of the reward: every canary would pass")
        if self.max_episodes < self.min_episodes * len(self.steps):
            wrong.append(f"max_episodes {self.max_episodes} is reached before the last of {len(self.steps)} steps")
        if len(names) != len(set(names)):
            wrong.append(f"metrics need different names, got {', '.join(names)}")
        checks = [check.name for check in self.checks]
        if len(checks) != len(set(checks)):
            wrong.append(f"checks need different names, got {', '.join(checks)}")
        wrong += [
            f"check {check.name}: `limit` compares with a number, and `tolerance` with the serving version's; set one"
            for check in self.checks
            if check.limit is not None and check.tolerance
        ]
        for metric in self.metrics:
            wrong += [f"metric {metric.name}: {contradiction}" for contradiction in metric.contradictions(components)]
            if metric.min_episodes * len(self.steps) > self.max_episodes:
                wrong.append(
                    f"metric {metric.name}: min_episodes {metric.min_episodes} are not reached in max_episodes"
                )
        return wrong


class RunConfig(Config):
    """One model's training over the log."""

    run_id: str = Field(default="main", pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Its name in the log, in commands and in SQL."""
    model: ModelName = "agent"
    """Name that agents ask for."""
    filter: FilterConfig = FilterConfig()
    grouping: GroupingConfig = GroupingConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    batching: BatchingConfig = BatchingConfig()
    resample: ResampleConfig | None = None
    """None makes no attempts in addition to traffic."""
    delivery: DeliveryConfig | None = Field(default=None, exclude_if=_is_empty)
    """None serves versions as the trainer's `serve` says."""

    @property
    def signal_tolerance(self) -> float:
        """By how much a group's rewards must differ; a backend that trains on messages compares by itself."""
        return -1.0 if self.filter.without_tokens else SIGNAL_TOLERANCE
