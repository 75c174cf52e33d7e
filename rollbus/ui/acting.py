"""What people do on the page → records in the log: feedback on an episode, and members of a data set.

Feedback is signed in the name of the principal whose token brought it, with a recorder for each of them; the owner's is
`operator`'s. ClickHouse shows what was written once the sink has it. Nothing here reads or decides.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollbus.producers import Recorder, init
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.topics import DATA_SETS
from rollbus.schemas.wall_clock import wall_clock_ms

Form = TypeVar("Form", bound=BaseModel)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
OPERATOR = "operator"
"""Source of the owner's feedback, and the principal that signs it; a principal's own is of a source of its name."""
FLUSH_S = 10.0
"""How long a report may take to be confirmed before the page says that it still waits."""


class Feedback(BaseModel):
    """A reward that a person gives."""

    model_config = ConfigDict(extra="forbid")

    episode_id: str = Field(min_length=1, max_length=200)
    value: float = Field(allow_inf_nan=False)
    name: str = Field(default="reward", min_length=1, max_length=100)
    comment: str | None = Field(default=None, max_length=2_000)


class Membership(BaseModel):
    """A trajectory that goes into a data set, or out of it."""

    model_config = ConfigDict(extra="forbid")

    data_set: str
    trajectory_id: str = Field(min_length=1, max_length=200)
    episode_id: str = Field(min_length=1, max_length=200)
    is_member: bool = True


class Acting:
    """Kafka behind the page's forms."""

    def __init__(
        self,
        kafka: KafkaConnection,
        namespace: str,
        clock_ms: Callable[[], int] = wall_clock_ms,
        sign_as: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """`sign_as` returns the token by which the page signs in a principal's name, if it can."""
        self._kafka, self._namespace, self._clock_ms, self._sign_as = kafka, namespace, clock_ms, sign_as
        self._recorders: dict[str, Recorder] = {}
        """By principal."""

    def report(self, values: Mapping[str, Any], principal: str = OPERATOR) -> str:
        """Report feedback and return its event's id; raises ConfigurationError, UnavailableError."""
        given = _read(Feedback, values)
        if principal not in self._recorders:
            token = self._sign_as(principal)
            self._recorders[principal] = init(
                security=self._kafka, namespace=self._namespace, producer="rollbus-ui", token=token
            )
        recorder = self._recorders[principal]
        event_id = recorder.feedback(
            episode=given.episode_id, reward=given.value, name=given.name, source=principal, comment=given.comment
        )
        if event_id is None or not recorder.flush(FLUSH_S):
            raise UnavailableError("Kafka has not confirmed the feedback yet; it is sent when Kafka answers again")
        return event_id

    async def change_member(self, values: Mapping[str, Any]) -> None:
        """Put a trajectory into a data set, or take it out; raises ConfigurationError, UnavailableError."""
        given = _read(Membership, values)
        if not _NAME.fullmatch(given.data_set):
            raise ConfigurationError(
                f"{given.data_set[:120]!r} cannot name a data set; take letters, digits, `.`, `_` and `-`, at most 100"
            )
        record = DataSetMember(**given.model_dump(), changed_at_ms=self._clock_ms())
        row = Row(DATA_SETS.full_name(self._namespace), 0, record.data_set.encode(), encode(record))
        await send_each(self._kafka, [row], "data set")

    def close(self) -> None:
        """Send what still waits."""
        for recorder in self._recorders.values():
            recorder.close()


def _read(form: type[Form], values: Mapping[str, Any]) -> Form:
    try:
        return form.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, detail['loc'])) or 'the form'}: {detail['msg']}" for detail in error.errors()
        )
        raise ConfigurationError(wrong) from error
