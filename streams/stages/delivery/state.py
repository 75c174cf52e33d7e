"""What delivery remembers of one run: who serves, versions, the present canary's episodes, and their sums.

Bounded: the sums are one row per metric and kind of task, or principal, an episode waits `wait_ms` at most and is then
a number, a thousand episodes are followed for their delays, and the ids of those counted are forgotten beyond 100,000.
Only versions grow, a row each; evaluations are kept from the serving version on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace

from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.delivery import EpisodeObserved
from rollbus.schemas.records.steps import PolicyState
from rollbus.streams.stages.delivery.evidence.balance import Balance, may_count
from rollbus.streams.stages.delivery.evidence.effect import Effect, Stratum
from rollbus.streams.stages.delivery.evidence.evaluation_checks import Measured
from rollbus.streams.stages.delivery.evidence.waiting import Delays
from rollbus.streams.state.recent_keys import Recent
from rollbus.streams.state.rows import INT, KEPT_RECORD, KeptRecord, json_codec
from rollbus.streams.state.stage_state import StageState
from rollbus.streams.state.table import RowCodec, Table

MOST_STRATA = 100
"""Tasks that are compared with themselves; episodes of all others are compared with one another."""
MOST_PRINCIPALS = 1_000
"""Principals whose episodes are counted apart; those of all others are counted as one's."""
EVERYBODY, OTHER_PRINCIPALS = "*", "others"
HEARD_MS = 5_000
"""After a change of the shares, episodes do not count for so long: not every router has heard of it."""
_KEY = "head"


@dataclass(frozen=True, slots=True)
class DeliveryHead:
    """Who serves, and how far the canary is."""

    number: int = 0
    """Of the newest decision."""
    serving: int | None = None
    canary: int | None = None
    step: int = 0
    shares: tuple[tuple[int, float], ...] = ()
    """The canary's share since each stream time, oldest first."""
    episodes_before: int = 0
    """Of the canary with a reward, before this step."""
    known_before: tuple[tuple[str, int], ...] = ()
    """By metric: episodes of the canary in which it was known, before this step."""
    held: str = ""
    """Why the canary stays at its share."""
    noticed: tuple[str, ...] = ()
    """Metrics whose alarm was reported already."""
    frozen: bool = False
    cool_until_ms: int = 0
    newest_tried: int = -1
    """No older candidate becomes a canary by itself."""
    mixed: int = 0
    """Episodes that more than one version answered, or another."""
    strayed: int = 0
    """Episodes that another rule than the present one sent to their version."""
    unserved: int = 0
    """Episodes that were the canary's by their draw and went elsewhere, since one that it answered."""
    clipped: int = 0
    outside: int = 0
    """Of them, rewards."""
    unbalanced: int = 0
    """Episodes of principals that had more of them in an arm than chance gives, or than one may have."""
    salt: str = ""
    """Key of the present canary's draw."""
    late: int = 0
    """Revisions of rewards that came after their episode was counted."""
    wait_ms: int | None = None
    """How long an episode that comes now waits, by the delays of this canary's time; None is the longest wait."""
    last_due_ms: int = 0
    """When the episode that came last is counted."""

    @property
    def share(self) -> float:
        """The canary's share now."""
        return self.shares[-1][1] if self.shares else 0.0

    def share_at(self, at_ms: int) -> float:
        """Return the share that the canary had at a time; 0 before it was one, and while routers hear of a change."""
        since_ms, share = next((share for share in reversed(self.shares) if share[0] <= at_ms), (0, 0.0))
        return share if at_ms >= since_ms + HEARD_MS else 0.0

    def without_canary(self) -> "DeliveryHead":
        """Return the head after its canary: all traffic to the serving version."""
        return replace(
            self,
            canary=None,
            step=0,
            shares=(),
            episodes_before=0,
            known_before=(),
            held="",
            noticed=(),
            mixed=0,
            strayed=0,
            unserved=0,
            clipped=0,
            outside=0,
            unbalanced=0,
            salt="",
            late=0,
            wait_ms=None,
            last_due_ms=0,
        )


@dataclass(frozen=True, slots=True)
class DeliveryVersion:
    """A version as this stage knows it."""

    parent: int | None
    state: PolicyState


@dataclass(frozen=True, slots=True)
class FollowedEpisode:
    """An episode whose rewards are followed, counted or not."""

    arrived_ms: int
    is_canary: bool
    revision: int
    came: Mapping[str, int]
    """By metric: how many ms later it came."""


def _delays(plain: tuple[dict[str, int], int]) -> Delays:
    came, never = plain
    return Delays({int(age): count for age, count in came.items()}, never)


def _head(plain: dict[str, object]) -> DeliveryHead:
    head = DeliveryHead(**plain)  # type: ignore[arg-type]
    shares = tuple((since_ms, share) for since_ms, share in head.shares)
    known_before = tuple((name, count) for name, count in head.known_before)
    return replace(head, shares=shares, noticed=tuple(head.noticed), known_before=known_before)


_HEADS: RowCodec[DeliveryHead] = json_codec(asdict, _head)
_VERSIONS: RowCodec[DeliveryVersion] = json_codec(astuple, lambda plain: DeliveryVersion(*plain))
_EFFECTS: RowCodec[Effect] = json_codec(astuple, lambda plain: Effect(*plain))
_MEASURED: RowCodec[Measured] = json_codec(astuple, lambda plain: Measured(*plain))
_FOLLOWED: RowCodec[FollowedEpisode] = json_codec(astuple, lambda plain: FollowedEpisode(*plain))
_DELAYS: RowCodec[Delays] = json_codec(astuple, _delays)
_BALANCES: RowCodec[Balance] = json_codec(astuple, lambda plain: Balance(*plain))
_STRATA: RowCodec[Stratum] = json_codec(astuple, lambda plain: Stratum(*plain))


class DeliveryState(StageState[RunConfig]):
    """Head, versions, episodes that wait, those counted, and the sums of the present canary."""

    def __init__(self, config: RunConfig) -> None:
        self.heads: Table[DeliveryHead] = Table("head", _HEADS)
        self.versions: Table[DeliveryVersion] = Table("version", _VERSIONS)
        self.waiting: Table[KeptRecord[EpisodeObserved]] = Table("wait", KEPT_RECORD)
        self.dues: Table[int] = Table("due", INT)
        """When each that waits is counted: in the order of arrival."""
        self.seen: Recent[int] = Recent("seen", INT)
        self.followed: Table[FollowedEpisode] = Table("followed", _FOLLOWED)
        self.delays: Table[Delays] = Table("delay", _DELAYS)
        self.effects: Table[Effect] = Table("effect", _EFFECTS)
        self.strata: Table[Stratum] = Table("stratum", _STRATA)
        self.balances: Table[Balance] = Table("balance", _BALANCES)
        """By principal, after a letter; `EVERYBODY` has the sum."""
        self.parts: Table[Effect] = Table("part", _EFFECTS)
        """Each principal's part of an effect, by its key in `balances`, then by metric."""
        self.evaluations: Table[Measured] = Table("evaluation", _MEASURED)
        super().__init__(
            config,
            *(self.heads, self.versions, self.waiting, self.dues, self.seen.table, self.followed, self.delays),
            *(self.effects, self.strata, self.balances, self.parts, self.evaluations),
        )
        self.order = 0
        self.followed_by_arm: Counter[bool] = Counter()

    @property
    def head(self) -> DeliveryHead:
        """Who serves, and how far the canary is."""
        return self.heads.get(_KEY) or DeliveryHead()

    @head.setter
    def head(self, head: DeliveryHead) -> None:
        if head != self.head:
            self.heads.put(_KEY, head)

    def rebuild(self) -> None:
        """Derive the order of arrival and of use."""
        self.order = 1 + max((row.order for row in self.waiting.rows.values()), default=0)
        self.followed_by_arm = Counter(row.is_canary for row in self.followed.rows.values())
        self.seen.rebuild()
        super().rebuild()

    def is_first_time(self, key: str) -> bool:
        """Say whether an id is new, and remember it."""
        if key in self.seen:
            return False
        self.seen.put(key, self.clock.now_ms)
        return True

    def waiting_keys(self) -> Iterable[str]:
        """Return the trajectories that wait for their rewards."""
        return self.waiting.rows

    def deadline(self, key: str) -> int | None:
        """Return when a trajectory is counted."""
        row, delivery = self.waiting.get(key), self.config.value.delivery
        if row is None or delivery is None:
            return None
        longest = self.clock.since(row.arrived_ms) + delivery.wait_ms
        return min(longest, self.dues.rows.get(key, longest))

    def wait(self, key: str, row: KeptRecord[EpisodeObserved], wait_ms: int) -> None:
        """Let an episode wait so long, and at least as long as those that came before it."""
        due_ms = max(self.head.last_due_ms, self.clock.now_ms + wait_ms)
        self.head = replace(self.head, last_due_ms=due_ms)
        self.waiting.put(key, row)
        self.dues.put(key, due_ms)
        self.due.watch(key)

    def end_wait(self, key: str) -> None:
        """Forget an episode that waited."""
        self.waiting.delete(key)
        self.dues.delete(key)

    def follow(self, key: str, row: FollowedEpisode) -> None:
        """Remember what has come of an episode."""
        self.followed_by_arm[row.is_canary] += key not in self.followed.rows
        self.followed.put(key, row)

    def unfollow(self, key: str) -> None:
        """Forget an episode that was followed."""
        self.followed_by_arm[self.followed.rows[key].is_canary] -= 1
        self.followed.delete(key)

    def stratum_key(self, metric: str, task: str) -> str:
        """Return the key of a metric's stratum: the task, while there is room for more of them."""
        key = f"{metric}{SEPARATOR}{task}"
        has_stratum = key in self.strata.rows or len(self.strata.rows) < MOST_STRATA * (1 + len(self.effects.rows))
        return key if has_stratum else f"{metric}{SEPARATOR}"

    def take_principal(self, principal: str, *, is_canary: bool, share: float, most: float) -> bool:
        """Count an episode of a principal in an arm; return False if it may not count.

        If some sign, what is not signed counts as one principal's. If nobody signs, it cannot be told apart: all of it
        counts, and `is_unsigned_by_chance` says whether it is believed.
        """
        key = self.key_of(principal)
        balance, total_balance = self.balances.get(key) or Balance(), self.balances.get(EVERYBODY) or Balance()
        is_apart = principal or total_balance.episodes > balance.episodes
        if is_apart and not may_count(balance, total_balance, is_canary=is_canary, share=share, most=most):
            return False
        self.balances.put(key, balance.add(is_canary=is_canary, share=share))
        self.balances.put(EVERYBODY, total_balance.add(is_canary=is_canary, share=share))
        return True

    def key_of(self, principal: str) -> str:
        """Return under which key a principal's episodes are counted: many share one where there are very many."""
        key = "p" + principal
        return key if key in self.balances.rows or len(self.balances.rows) <= MOST_PRINCIPALS else OTHER_PRINCIPALS

    def add_part(self, principal: str, metric: str, before: Effect, after: Effect) -> None:
        """Add to a principal's part of an effect what an episode of it has changed."""
        key = f"{self.key_of(principal)}{SEPARATOR}{metric}"
        part = self.parts.get(key) or Effect()
        self.parts.put(key, part.plus(after.without(before)))

    def effects_without_one(self, metric: str) -> Iterator[Effect]:
        """Yield a metric's effect without each principal that has less than half of the episodes that count."""
        effect, total_balance = self.effects.get(metric) or Effect(), self.balances.get(EVERYBODY) or Balance()
        for key, balance in self.balances.rows.items():
            if key != EVERYBODY and 2 * balance.episodes < total_balance.episodes:
                part = self.parts.get(f"{key}{SEPARATOR}{metric}")
                if part is not None:
                    yield effect.without(part)

    def is_unsigned_by_chance(self) -> bool:
        """Say whether chance may have given the canary as many of the episodes that nobody signed."""
        return (self.balances.get("p") or Balance()).is_by_chance()

    def forget_evidence(self) -> None:
        """Forget the canary's episodes and their sums."""
        self.followed_by_arm.clear()
        evidence = (self.effects, self.strata, self.balances, self.parts)
        for table in (self.waiting, self.dues, *evidence, self.followed, self.delays):
            for key in list(table.rows):
                table.delete(key)

    def version(self, number: int) -> DeliveryVersion | None:
        """Return what is known of a version."""
        return self.versions.get(str(number))

    def descends_from(self, number: int, state: PolicyState) -> int | None:
        """Return the nearest ancestor in a state; None if there is none."""
        walked, parent = {number}, self._parent(number)
        while parent is not None and parent not in walked:
            walked.add(parent)
            version = self.version(parent)
            if version is not None and version.state == state:
                return parent
            parent = self._parent(parent)
        return None

    def _parent(self, number: int) -> int | None:
        version = self.version(number)
        return None if version is None else version.parent
