"""A record made by copying is the record that its constructor makes, and is checked as that is."""

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from rollbus.schemas.record_makers import copier, unfrozen
from rollbus.schemas.records.events import WriterClosed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    name: str
    seat: int
    price: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    name: str
    seat: int
    minutes: int

    def __post_init__(self) -> None:
        if self.minutes < 0:
            raise ValueError(f"{self.minutes} minutes")


visit_of = copier(Ticket, Visit, "minutes")


def test_common_fields_are_copied_and_the_rest_is_given() -> None:
    assert visit_of(Ticket(name="Ada", seat=3), minutes=90) == Visit(name="Ada", seat=3, minutes=90)


def test_a_given_value_wins_over_a_copied_one() -> None:
    move = copier(Ticket, Ticket, "seat")
    assert move(Ticket(name="Ada", seat=3, price=2.5), seat=4) == Ticket(name="Ada", seat=4, price=2.5)


def test_the_result_is_frozen_and_checked() -> None:
    visit = visit_of(Ticket(name="Ada", seat=3), minutes=0)
    with pytest.raises(FrozenInstanceError):
        visit.minutes = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="-1 minutes"):
        visit_of(Ticket(name="Ada", seat=3), minutes=-1)


def test_a_field_without_a_source_is_refused_when_the_function_is_made() -> None:
    with pytest.raises(TypeError, match="minutes"):
        copier(Ticket, Visit)
    with pytest.raises(TypeError, match="hours"):
        copier(Ticket, Visit, "minutes", "hours")


def test_a_record_being_made_is_not_frozen() -> None:
    writer_closed: Any = object.__new__(unfrozen(WriterClosed))
    writer_closed.count = 7
    del writer_closed.count  # where a base forbids this, Python sets every field by a call, too
    assert not hasattr(writer_closed, "count")
