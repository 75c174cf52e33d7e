"""Which groups there are and what they have committed, of a broker that cannot tell at first."""

from typing import Any

import pytest
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NotCoordinatorForGroupError,
)

from rollbus.schemas.kafka.groups import committed_offsets, list_groups


class Admin:
    """Answers as it is told to, the last of it for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def list_consumer_groups(self) -> Any:
        return (await self.list_consumer_group_offsets(""))[""]

    async def list_consumer_group_offsets(self, group_id: str) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {group_id: answer}


async def test_a_broker_that_cannot_tell_yet_is_asked_again() -> None:
    new = Admin(GroupCoordinatorNotAvailableError(), NotCoordinatorForGroupError(), GroupLoadInProgressError(), 7)
    assert await committed_offsets(new, "g", pause_s=0) == {"g": 7}


async def test_a_broker_that_still_loads_its_groups_is_asked_again_for_their_names() -> None:
    loading = Admin(*[GroupLoadInProgressError()] * 3, [("a.sink", "consumer"), ("b.sink", "consumer")])
    assert await list_groups(loading, "a.", pause_s=0) == ["a.sink"]
    with pytest.raises(GroupLoadInProgressError):
        await list_groups(Admin(GroupLoadInProgressError()), "a.", pause_s=0)


async def test_one_that_can_never_tell_is_not_taken_for_one_where_nothing_is_committed() -> None:
    with pytest.raises(GroupCoordinatorNotAvailableError):
        await committed_offsets(Admin(GroupCoordinatorNotAvailableError()), "g", pause_s=0)


async def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    with pytest.raises(KafkaError, match="not allowed"):
        await committed_offsets(Admin(KafkaError("not allowed"), 7), "g", pause_s=0)
