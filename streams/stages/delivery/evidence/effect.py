"""The effect of a canary on one outcome, from running sums: how much more its episodes have than others.

Which version an episode gets is a draw of known probability, its share. So for an outcome y in [0, 1] the term

    canary (1 − share) (y − expected₁) − serving · share (y − expected₀)  +  share (1 − share) (expected₁ − expected₀)

is on average share (1 − share) times the effect at that moment, whatever the two expectations are, if they were made
before. They are the means of the episode's stratum so far: what is common to both arms leaves the noise. Weighted so,
episodes of all shares add up, a share that grows while the traffic changes misleads nothing, and no term is far from
what was foreseen. (Ham, Bojinov, Lindon, Tingley: Design-based confidence sequences, 2022; the weights are those of
overlap, Li, Morgan, Zaslavsky 2018.)
"""

from dataclasses import dataclass, replace

from rollbus.streams.stages.delivery.evidence.mixture import bound, log_wealth

PRIOR_EPISODES = 10.0
"""With as many canary episodes in a stratum, its expectation is half their mean and half the serving arm's."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """What is known of one kind of episodes, such as a task."""

    canary: int = 0
    canary_sum: float = 0.0
    serving: int = 0
    serving_sum: float = 0.0

    def expected(self) -> tuple[float, float]:
        """Return what an episode of the canary, and one of the serving version, will probably have."""
        serving = (self.serving_sum + 0.5) / (self.serving + 1)
        canary = (self.canary_sum + PRIOR_EPISODES * serving) / (self.canary + PRIOR_EPISODES)
        return canary, serving

    def add(self, outcome: float, *, is_canary: bool) -> "Stratum":
        """Return the stratum with one more episode."""
        if is_canary:
            return replace(self, canary=self.canary + 1, canary_sum=self.canary_sum + outcome)
        return replace(self, serving=self.serving + 1, serving_sum=self.serving_sum + outcome)


@dataclass(frozen=True, slots=True)
class Effect:
    """Sums over all episodes of both arms, or over those of one principal."""

    total: float = 0.0
    variance: float = 0.0
    weight: float = 0.0
    canary: int = 0
    serving: int = 0

    def add(self, outcome: float, stratum: Stratum, *, is_canary: bool, share: float) -> "Effect":
        """Return the effect with one more episode; `stratum` as it was before this one."""
        canary, serving = stratum.expected()
        weight = share * (1 - share)
        surprise = (1 - share) * (outcome - canary) if is_canary else -share * (outcome - serving)
        return Effect(
            total=self.total + surprise + weight * (canary - serving),
            variance=self.variance + surprise * surprise,
            weight=self.weight + weight,
            canary=self.canary + is_canary,
            serving=self.serving + (not is_canary),
        )

    def plus(self, part: "Effect") -> "Effect":
        """Return the effect of the episodes of both."""
        return Effect(
            total=self.total + part.total,
            variance=self.variance + part.variance,
            weight=self.weight + part.weight,
            canary=self.canary + part.canary,
            serving=self.serving + part.serving,
        )

    def without(self, part: "Effect") -> "Effect":
        """Return the effect of the episodes that are not in this part of it."""
        return Effect(
            total=self.total - part.total,
            variance=max(0.0, self.variance - part.variance),
            weight=max(0.0, self.weight - part.weight),
            canary=self.canary - part.canary,
            serving=self.serving - part.serving,
        )

    @property
    def mean(self) -> float:
        """The estimate: canary − serving, on the scale of [0, 1]."""
        return self.total / self.weight if self.weight else 0.0

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return bounds that hold at all times together with probability 1 − alpha."""
        if not self.weight:
            return -1.0, 1.0
        radius = bound(self.variance, alpha / 2) / self.weight
        return max(-1.0, self.mean - radius), min(1.0, self.mean + radius)

    def log_evidence_above(self, effect: float) -> float:
        """Return the log of the wager that the true effect is above this one."""
        return log_wealth(self.total - effect * self.weight, self.variance)

    def log_evidence_below(self, effect: float) -> float:
        """Return the log of the wager that the true effect is below this one."""
        return log_wealth(effect * self.weight - self.total, self.variance)
