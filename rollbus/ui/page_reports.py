"""What a judge says on the page → records in the log: verdicts on an episode, and members of a data set.

A verdict is a reward like any other, signed in the name of its judge, of source `operator` with the owner's token and
`judge` with a principal's. So two judges do not replace one another's. ClickHouse shows it once the sink has written
it. Nothing here reads or decides.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollbus.producers.episode.outbox import root_of
from rollbus.producers.episode.rewards import KEYED
from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas import ids
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.principals import OPERATOR
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.records.events import RewardReported
from rollbus.schemas.signing import Signing
from rollbus.schemas.topics import DATA_SETS, EPISODE_EVENTS
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.ui.sessions import PageJudge

Form = TypeVar("Form", bound=BaseModel)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
PRODUCER = "rollbus-ui"


class VerdictForm(BaseModel):
    """A reward that a person gives, or takes back."""

    model_config = ConfigDict(extra="forbid")

    episode_id: str = Field(min_length=1, max_length=200)
    value: float | None = Field(allow_inf_nan=False)
    """None takes back what this judge has said under the name."""
    name: str = Field(default="reward", min_length=1, max_length=100)
    comment: str | None = Field(default=None, max_length=2_000)
    supersedes: str | None = Field(default=None, max_length=200)
    """The judge's earlier report, which this one replaces."""


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
        *,
        signing: Signing | None = None,
    ) -> None:
        self._kafka, self._namespace, self._clock_ms = kafka, namespace, clock_ms
        self._signing = signing or Signing()
        self._newest: dict[tuple[str, str, str], str] = {}
        """By judge, episode and name: the report that the next one replaces, also before the sink has written it."""

    def check_judge(self, judge: PageJudge) -> None:
        """Raise ConfigurationError if a verdict could not keep this author."""
        if judge.name != OPERATOR and not self._signing.principals:
            raise ConfigurationError(
                f"a verdict keeps its author by a signature, and `signing: principals:` has no key; judge as {OPERATOR}"
            )

    async def report(self, judge: PageJudge, values: Mapping[str, Any]) -> str:
        """Report a verdict and return its event's id; raises ConfigurationError, UnavailableError."""
        record = self.make_report(judge, values)
        topic = EPISODE_EVENTS.full_name(self._namespace)
        key, value = record.root_episode_id.encode(), encode(record)
        async with running(self._kafka, new_producer(self._kafka), what="verdict") as producer:
            await producer.send_and_wait(
                topic, value, key=key, headers=self._signing.sign(judge.name, topic, key, value)
            )
        self._newest[judge.name, record.episode_id, record.name] = record.event_id
        return record.event_id

    def make_report(self, judge: PageJudge, values: Mapping[str, Any]) -> RewardReported:
        """Return the record of a verdict, which replaces the judge's own before it; raises ConfigurationError."""
        verdict = _read(VerdictForm, values)
        newest = self._newest.get((judge.name, verdict.episode_id, verdict.name), verdict.supersedes)
        is_withdrawn = verdict.value is None
        return RewardReported(
            event_id=ids.reward_event_id(verdict.episode_id, verdict.name, f"{judge.name} {uuid.uuid4()}"),
            episode_id=verdict.episode_id,
            root_episode_id=root_of(verdict.episode_id),
            writer_id=PRODUCER,
            sequence=KEYED,
            occurred_at_ms=self._clock_ms(),
            episode_started_at_ms=0,
            producer=PRODUCER,
            name=verdict.name,
            value=verdict.value,
            source=judge.source,
            retracted=is_withdrawn,
            supersedes=None if is_withdrawn else newest,
            comment=verdict.comment,
        )

    async def change_member(self, values: Mapping[str, Any]) -> None:
        """Put a trajectory into a data set, or take it out; raises ConfigurationError, UnavailableError."""
        membership = _read(Membership, values)
        if not _NAME.fullmatch(membership.data_set):
            raise ConfigurationError(
                f"{membership.data_set[:120]!r} cannot name a data set; "
                "take letters, digits, `.`, `_` and `-`, at most 100"
            )
        record = DataSetMember(**membership.model_dump(), changed_at_ms=self._clock_ms())
        row = Row(DATA_SETS.full_name(self._namespace), 0, record.data_set.encode(), encode(record))
        await send_each(self._kafka, [row], "data set")


def _read(form: type[Form], values: Mapping[str, Any]) -> Form:
    try:
        return form.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, detail['loc'])) or 'the form'}: {detail['msg']}" for detail in error.errors()
        )
        raise ConfigurationError(wrong) from error
