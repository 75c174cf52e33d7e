"""Notices of the funnels → changes of the settings file that follow from them, each once. Pure.

Which setting follows from a notice, and its value, is the funnel's to say (`Notice.change`); this only collects.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from rollbus.health.funnel.funnel import Funnel
from rollbus.settings_file import Place, format_place
from rollbus.start.settings_text import set_value


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change of the settings file."""

    place: Place
    value: Any
    why: str

    @property
    def text(self) -> str:
        """Return the change as people write it."""
        value = yaml.safe_dump(self.value, default_flow_style=True, sort_keys=False).removesuffix("...\n").strip()
        return f"{format_place(self.place)}: {value}"


def find_proposals(funnels: Iterable[Funnel]) -> tuple[Proposal, ...]:
    """Return every change that a notice asks for; of several at one place the first."""
    by_place: dict[Place, Proposal] = {}
    for proposal in _read_notices(funnels):
        by_place.setdefault(proposal.place, proposal)
    return tuple(by_place.values())


def _read_notices(funnels: Iterable[Funnel]) -> Iterator[Proposal]:
    for number, funnel in enumerate(funnels):
        for notice in funnel.notices:
            if notice.change is not None:
                place: Place = (*(("runs", number) if notice.change.is_of_run else ()), *notice.change.place)
                yield Proposal(place, notice.change.value, notice.what)


def write_proposals(text: str, proposals: Iterable[Proposal]) -> str:
    """Return the settings file's text with the changes."""
    for proposal in proposals:
        text = set_value(text, proposal.place, proposal.value)
    return text
