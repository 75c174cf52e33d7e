"""A producer with the permissions that are printed for it: it writes any record into the topics of producers.

It knows every name, also of episodes and of reports; it has none of the keys.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.signing import OWNER, SIGNATURE_HEADER, Signing, make_signature
from rollbus.schemas.topics import Topic
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import StagePartition
from rollbus.streams.state.stage import PureAsEffects
from tests.streams.replay.memory import Raw

NAMESPACE = "n."
KEY, CHECKERS_KEY, STOLEN = "the-owners-own-key", "the-checkers-own-key", "a-key-of-somebody-else"


def keys(*owner: str, **fields: Any) -> Signing:
    """Return the keys as the settings file gives them."""
    return Signing.model_validate({"owner": list(owner), **fields})


SIGNING = keys(KEY, sources={"checker": CHECKERS_KEY})


@dataclass
class Door:
    """One partition of a stage whose input producers write, as its worker runs it."""

    stage: Any
    signing: Signing = SIGNING
    letters: list[Any] = field(default_factory=list)
    log: list[Raw] = field(default_factory=list)
    """All that was written, in order."""

    def __post_init__(self) -> None:
        self.topic = self.stage.input.full_name(NAMESPACE)
        self.work = StagePartition(
            PureAsEffects(self.stage),
            Partition(self.topic, 0),
            app_version="1",
            signer_of=partial(self.signing.signer_of, self.topic) if self.signing.is_used else None,
        )

    async def write(self, record: Any, headers: Any = (), timestamp: int = 0, timestamp_type: int = 0) -> list[Any]:
        """Append a record; return what follows from it, dead letters apart."""
        raw = Raw(len(self.log), b"e1", encode(record), timestamp, tuple(headers), timestamp_type)
        self.log.append(raw)
        processed = await self.work.process([raw])
        outputs = [(out, decode(out.value)) for out in processed.outputs]
        self.letters += [record for out, record in outputs if out.topic == "dead-letters"]
        return [record for out, record in outputs if out.topic != "dead-letters"]

    def append(self, record: Any, signer: str = "") -> Raw:
        """Append a record, signed by whom it is said, that is not processed yet."""
        data = encode(record)
        signature = self.signing.sign(signer, self.topic, b"e1", data)
        self.log.append(Raw(len(self.log), b"e1", data, 0, tuple(signature)))
        return self.log[-1]

    async def write_signed(self, record: Any, signer: str = OWNER) -> list[Any]:
        """Append a record as its signer does."""
        return await self.write(record, self.signing.sign(signer, self.topic, b"e1", encode(record)))

    @property
    def refusals(self) -> list[str]:
        """The classes of the dead letters so far."""
        return [letter.error_class for letter in self.letters]


def forgeries(topic: Topic, record: Any) -> dict[str, list[tuple[str, bytes]]]:
    """Headers with which somebody without the owner's key may try it, by what is wrong with them."""
    data, name = encode(record), topic.full_name(NAMESPACE)
    (good,) = SIGNING.sign(OWNER, name, b"e1", data)
    return {
        "none": [],
        "empty": [(SIGNATURE_HEADER, b"")],
        "only a name": [(SIGNATURE_HEADER, OWNER.encode())],
        "not text": [(SIGNATURE_HEADER, b"\xff" * 40)],
        "another key": make_signature(OWNER, STOLEN.encode(), name, b"e1", data),
        "a source's key": make_signature("checker", CHECKERS_KEY.encode(), name, b"e1", data),
        "a source's key under the owner's name": make_signature(OWNER, CHECKERS_KEY.encode(), name, b"e1", data),
        "of another topic": SIGNING.sign(OWNER, f"{NAMESPACE}trajectories", b"e1", data),
        "of another namespace": SIGNING.sign(OWNER, f"other.{topic.name}", b"e1", data),
        "of another key of Kafka": SIGNING.sign(OWNER, name, b"e2", data),
        "of another record": SIGNING.sign(OWNER, name, b"e1", data + b"x"),
        "cut off": [(SIGNATURE_HEADER, good[1][:-1])],
        "in a second header": [(SIGNATURE_HEADER, b"none" * 10), good],
    }
