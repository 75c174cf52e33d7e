"""What is counted of a run's episodes, and which of its settings the funnel needs to explain the counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig

STAGES = ("episodes", "trainable", "rewarded", "grouped", "with signal", "in a step")
"""What an episode reaches, in order; its number is what the counts call `reached`."""
EPISODES, TRAINABLE, REWARDED, GROUPED, WITH_SIGNAL, IN_STEP = range(len(STAGES))


@dataclass(frozen=True, slots=True)
class EpisodeCount:
    """Episodes that came equally far."""

    reached: int
    is_assembled: bool
    dropped_by: str
    """Reason of the drop; empty for what is on its way or trained."""
    detail: str
    """Why a turn cannot be trained, of those dropped as `untrainable`; what is outside, of `not_targeted` ones."""
    episodes: int
    oldest_ms: int
    paused: int = 0
    """Of them: those that have paused, such as to ask a person."""


@dataclass(frozen=True, slots=True)
class TurnCount:
    """Turns of one model, as its answers name it, from one server and with one verdict."""

    model: str
    reason: str
    """Empty for turns that can be trained."""
    turns: int
    versions: tuple[int, ...] = ()
    producers: tuple[str, ...] = ()
    server: str = ""
    """Scheme, host and port; empty if not known."""


@dataclass(frozen=True, slots=True)
class RewardCount:
    """Reports of one name."""

    name: str
    reports: int
    episodes: int
    late: int = 0
    """Those that came after their trajectory was dropped for want of a reward."""
    median_ms: float = 0.0
    """From assembly to a late report."""
    most_ms: float = 0.0
    """Nine of ten late reports came within it."""


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """Reports that wait for what they name."""

    kind: str
    """`alias`, or `episode` for an id."""
    reports: int
    example: str
    """The name that the newest of them has."""


@dataclass(frozen=True, slots=True)
class NextTurnCount:
    """Turns that users answered, or that two sources speak of."""

    kind: str
    """`signal`; `pair` of two components that speak of the same turns; `verdict` on the whole episode."""
    name: str
    turns: int
    matching: int
    """Of a signal, those that are unclear; of the others, those on which both agree."""


@dataclass(frozen=True, slots=True)
class RunCount:
    """Groups, batches and steps of one run."""

    newest_episode_ms: int = 0
    """Of all time; 0 before the first."""
    owed_since_ms: int = 0
    """When the first episode since the newest step began; 0 if none has."""
    groups: int = 0
    groups_with_signal: int = 0
    recent_groups_ms: tuple[int, ...] = ()
    """When those with a signal came in the time that the pace is taken from, the newest first."""
    first_group_ms: int = 0
    waiting_groups: int = 0
    """With a signal, in no batch and not dropped."""
    oldest_waiting_ms: int = 0
    short_groups: int = 0
    """Closed without enough members."""
    members_of_short: float = 0.0
    """Mean."""
    mismatched_example: str = ""
    prompts_of_example: int = 0
    tasks: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Of the scores of all runs."""
    open_batches: int = 0
    """Whose step is not closed."""
    step: int = 0
    """Newest completed one of all time."""
    versions: tuple[int, ...] = ()
    """Versions that the run's model has."""
    held: str = ""
    """`paused` or `stopped` where its last command says so."""


@dataclass(frozen=True, slots=True)
class RefusedCount:
    """Events that do not count, for one reason."""

    reason: str
    events: int
    example: str = ""
    """The detail of the newest one."""


@dataclass(frozen=True, slots=True)
class LostCount:
    """What recorders did not record or send, by the name of their counter, since their processes began."""

    counter: str
    """With its reason behind a dot."""
    number: int
    producers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InfluenceCount:
    """Whose the episodes are, who moved most of what they trained, and why the canary waits."""

    recorded: int = 0
    unsigned: int = 0
    """Of them: nobody's."""
    movers: int = 0
    """Principals whose episodes were trained."""
    mover: str = ""
    """The one with the largest share."""
    share: float = 0.0
    """Of the absolute advantage."""
    largest: float = 0.0
    """Largest share of one episode in a step of eight groups with a signal or more."""
    trajectory: str = ""
    """Its trajectory."""
    step: int = 0
    canary: int = -1
    """−1 for none."""
    holds: tuple[str, ...] = ()
    """Reasons for which it was held."""
    unbalanced: int = 0
    """Of its episodes, and those of the version that serves: more of one principal than chance gives, by the newest
    decision."""


@dataclass(frozen=True, slots=True)
class FunnelNumbers:
    """All counts of one run."""

    now_ms: int
    since_ms: int
    recent_ms: int
    """Since when the pace is taken."""
    episodes: tuple[EpisodeCount, ...] = ()
    turns: tuple[TurnCount, ...] = ()
    rewards: tuple[RewardCount, ...] = ()
    waiting: tuple[WaitingCount, ...] = ()
    next_turns: tuple[NextTurnCount, ...] = ()
    refused: tuple[RefusedCount, ...] = ()
    lost: tuple[LostCount, ...] = ()
    influence: InfluenceCount = InfluenceCount()
    run: RunCount = RunCount()
    applied_hashes: Mapping[str, str] = field(default_factory=dict)
    """Stage → hash of the configuration that it applied last; without one that never ran."""
    promoted: Mapping[str, str] = field(default_factory=dict)
    """Stage → the replay whose configuration that is, if it is one's."""


@dataclass(frozen=True, slots=True)
class FunnelSettings:
    """What the run and the stages before it are set to."""

    run: RunConfig = field(default_factory=RunConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    assembly: AssemblyConfig = field(default_factory=AssemblyConfig)

    def hash_by_stage(self) -> Mapping[str, str]:
        """Return the hash of what each of three stages is set to here; all stages of the run have that of grouping."""
        configs = {"assembly": self.assembly, "scoring": self.scoring, "grouping": self.run}
        return {stage: config.config_hash() for stage, config in configs.items()}
