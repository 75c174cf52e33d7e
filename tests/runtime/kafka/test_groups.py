"""Which groups there are and what they have committed, of a broker that cannot tell at first."""

from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    NoError,
    NotCoordinatorForGroupError,
)
from aiokafka.protocol.commit import OffsetFetchRequest

from rollbus.runtime.kafka.clients import consumer_options
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.groups import committed_offsets, list_groups

PLACE = TopicPartition("t", 0)
VERSIONS = {OffsetFetchRequest.API_KEY: (1, 10)}
"""Of OffsetFetch, as Kafka 4.1 has them."""


def answer_offsets(request: OffsetFetchRequest, answer: Any) -> Any:
    """Answer as Kafka does: from version 2 on an error is said once, and no partition is named."""
    prepared_request = request.prepare(VERSIONS)
    error = answer.errno if isinstance(answer, KafkaError) else NoError.errno
    rows = [("t", [(0, -1 if error else answer, "", error if prepared_request.API_VERSION < 2 else 0)])]
    if prepared_request.API_VERSION < 2:
        return prepared_request.RESPONSE_TYPE(topics=rows)
    return prepared_request.RESPONSE_TYPE(topics=[] if error else rows, error_code=error)


class Admin:
    """Answers as it is told to, the last of it for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def _next(self) -> Any:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def list_consumer_groups(self) -> Any:
        answer = self._next()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find_coordinator(self, group_id: str) -> int:
        return 1

    async def _send_request(self, request: OffsetFetchRequest, node: int) -> Any:
        return answer_offsets(request, self._next())


async def test_a_broker_that_is_not_ready_is_asked_again() -> None:
    new = Admin(GroupCoordinatorNotAvailableError(), NotCoordinatorForGroupError(), GroupLoadInProgressError(), 7)
    assert {place: committed.offset for place, committed in (await committed_offsets(new, "g", pause_s=0)).items()} == {
        PLACE: 7
    }


async def test_a_broker_that_still_loads_its_groups_is_asked_again_for_their_names() -> None:
    loading = Admin(*[GroupLoadInProgressError()] * 3, [("a.sink", "consumer"), ("b.sink", "consumer")])
    assert await list_groups(loading, "a.", pause_s=0) == ["a.sink"]
    with pytest.raises(GroupLoadInProgressError):
        await list_groups(Admin(GroupLoadInProgressError()), "a.", pause_s=0)


async def test_an_unanswered_offset_request_is_not_an_absent_offset() -> None:
    with pytest.raises(GroupCoordinatorNotAvailableError):
        await committed_offsets(Admin(GroupCoordinatorNotAvailableError()), "g", pause_s=0)


async def test_an_error_that_waiting_cannot_mend_is_raised_at_once() -> None:
    with pytest.raises(GroupAuthorizationFailedError, match="group g cannot be read"):
        await committed_offsets(Admin(GroupAuthorizationFailedError(), 7), "g", pause_s=0)


@pytest.mark.parametrize("error", [NotCoordinatorForGroupError, GroupLoadInProgressError])
async def test_a_consumer_asks_again_if_the_coordinator_is_not_ready(error: type[KafkaError]) -> None:
    consumer_options(KafkaConnection())
    answers = [error(), error(), 7]

    class Coordinator:
        """What aiokafka's own has, as far as it is used here."""

        group_id, _retry_backoff_ms = "g", 0
        _do_fetch_commit_offsets = GroupCoordinator._do_fetch_commit_offsets

        async def ensure_coordinator_known(self) -> None: ...

        def coordinator_dead(self) -> None: ...

        async def _send_req(self, request: OffsetFetchRequest) -> Any:
            return answer_offsets(request, answers.pop(0))

    offset_by_place = await GroupCoordinator.fetch_committed_offsets(cast(Any, Coordinator()), [PLACE])
    assert offset_by_place[PLACE].offset == 7
