"""A measurement beside its target, as one line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    what: str
    figures: str
    met: bool | None = None
    """None where nothing is promised."""

    def __str__(self) -> str:
        mark = {True: "met", False: "NOT MET", None: "reported"}[self.met]
        return f"{self.what:45} {mark:9} {self.figures}"


def reported(what: str, figures: str) -> Verdict:
    return Verdict(what, figures)


def at_least(what: str, value: float, target: float, figures: str) -> Verdict:
    return Verdict(what, f"{value:.2f}, target ≥ {target:g}; {figures}", value >= target)


def at_most(what: str, value: float, target: float, figures: str) -> Verdict:
    return Verdict(what, f"{value:.4f}, target ≤ {target:g}; {figures}", value <= target)
