"""Findings → a page for people and numbers for programs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe of one engine came to."""

    engine: str
    probe: str
    state: State
    figures: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    """Why it failed or was skipped."""


def to_json(machine: Mapping[str, str], findings: Sequence[Finding]) -> dict[str, Any]:
    return {"machine": dict(machine), "findings": [asdict(finding) for finding in findings]}


def to_markdown(machine: Mapping[str, str], findings: Sequence[Finding]) -> str:
    """Return the page: the machine, then a table row per probe."""
    states = [finding.state for finding in findings]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "skipped"))
    lines = ["# GPU check", "", f"{counts}.", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    lines += ["", "| engine | probe | | figures, or why not |", "|---|---|---|---|"]
    lines += [
        f"| {finding.engine} | {finding.probe} | {finding.state} | {_describe(finding)} |" for finding in findings
    ]
    return "\n".join(lines) + "\n"


def _describe(finding: Finding) -> str:
    figures = ", ".join(f"{name} {value:.3g}" for name, value in finding.figures.items())
    return " ".join(finding.reason.replace("|", "\\|").split()) or figures
