"""Signatures: who wrote a record into a topic that producers write, too. Pure.

A signature is a Kafka header: the signer's name, and an HMAC-SHA256 of the topic's full name, the record's key and its
value. So no signed record can be copied to another topic or namespace, and the record's own bytes stay as they are. The
topics of a restored archive are the one exception: they are checked under the names that they had. A signer may have
several keys: it signs with the first, and all of them are accepted, so that a key can be replaced.

Kafka tells a reader of a topic nothing about who wrote a record, and its permissions end at the topic. Ticks,
configurations and an operator's exclusions must be in the input that producers write, since one order decides. To forge
one takes both the permission to write and the owner's key. Producers do not have it; a replay has it and may not write.
A principal signs with the secret of its token (`principals`): the worker, which has the key of all, derives it.
"""

import hmac
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from rollbus.schemas.errors import RecordError
from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.namespaces import RESTORED
from rollbus.schemas.principals import (
    BY_OWNER,
    GRANTS,
    Grant,
    Principal,
    derive_secret,
    is_ended,
    read_head,
)

SIGNATURE_HEADER = "rollbus-signature"
OWNER = "owner"
"""The signer of ticks, configurations and exclusions; the others are sources of rewards."""
Headers = list[tuple[str, bytes]]
SignerOf = Callable[[Any], str | None]
"""A fetched record of one topic to the name of its signer; None if it is not signed."""


def _as_list(value: Any) -> Any:
    """Take one key for a list of one, and an empty text, as of an unset variable, for none."""
    return (value,) * bool(value) if isinstance(value, str | SecretStr) else value


Key = Annotated[SecretStr, Field(min_length=16)]
Keys = Annotated[tuple[Key, ...], BeforeValidator(_as_list)]


class Signing(BaseModel):
    """The keys of a namespace's owner and of the sources of rewards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: Keys = ()
    """Without any key, every record counts as the owner's."""
    sources: dict[str, Keys] = Field(default_factory=dict)
    """By source of rewards."""
    principals: Keys = ()
    """From which the tokens of all principals are derived; used where the owner has a key, too."""
    ended: dict[str, AwareDatetime] = Field(default_factory=dict)
    """By `NAME.GENERATION`: since when a principal's token counts no more."""
    signed_since: AwareDatetime | None = None
    """Records without a signature count as the owner's if the broker took them before this moment."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        wrong = [name for name in self.sources if not name or name == OWNER or SEPARATOR in name]
        if wrong:
            raise ValueError(f"sources: {wrong[0]!r} cannot be the name of a source that signs")
        return self

    @property
    def is_used(self) -> bool:
        """Whether signatures are asked for."""
        return bool(self._keys)

    @property
    def fingerprint(self) -> str:
        """A name of the owner's key in use, from which the key cannot be learned; empty without one."""
        keys = self._keys.get(OWNER)
        return hmac.digest(keys[0], b"fingerprint", "sha256").hex()[:16] if keys else ""

    def sign(self, signer: str | None, topic: str, key: bytes | None, value: bytes) -> Headers:
        """Return the headers of a record that a signer writes, or that is written on behalf of a principal; none if
        it has no key.
        """
        if keys := self._keys.get(signer or ""):
            return make_signature(signer or "", keys[0], topic, key, value)
        if not signer or signer == OWNER or not self._roots:
            return []
        head = Principal(signer, frozenset(GRANTS), BY_OWNER).head
        return make_signature(head, derive_secret(self._roots[0], head).encode(), topic, key, value)

    def signer_of(self, topic: str, record: Any) -> str | None:
        """Return the signer of a fetched record of a topic; None if it has no valid signature."""
        for name, value in getattr(record, "headers", ()):
            if name == SIGNATURE_HEADER:
                return self._verify_signature(value or b"", topic, record)  # Kafka lets the value of a header be null
        return OWNER if record.timestamp < self._since_ms else None

    @cached_property
    def _keys(self) -> Mapping[str, tuple[bytes, ...]]:
        plain = {**self.sources, OWNER: self.owner}
        return {name: tuple(key.get_secret_value().encode() for key in keys) for name, keys in plain.items() if keys}

    @cached_property
    def _since_ms(self) -> float:
        return self.signed_since.timestamp() * 1000 if self.signed_since else -1

    @cached_property
    def _roots(self) -> tuple[bytes, ...]:
        return tuple(key.get_secret_value().encode() for key in self.principals)

    @cached_property
    def ended_ms(self) -> Mapping[str, float]:
        """Since when tokens count no more, in milliseconds since 1970."""
        return {name: moment.timestamp() * 1000 for name, moment in self.ended.items()}

    @cached_property
    def _identities(self) -> dict[str, tuple[Principal | None, tuple[bytes, ...]]]:
        """By the head of a signature: whose it is, None for a source's or the owner's, and the keys of it."""
        return {name: (None, keys) for name, keys in self._keys.items()}

    def _verify_signature(self, value: bytes, topic: str, record: Any) -> str | None:
        head = value[:-_MAC_BYTES].decode(errors="replace")
        principal, keys = self._identities.get(head) or self._learn(head)
        data = record.value or b""
        if not any(hmac.compare_digest(_mac(key, head, topic, record.key, data), value[-_MAC_BYTES:]) for key in keys):
            return None
        if principal is None:
            return head
        is_ended_now = bool(self.ended) and is_ended(self.ended_ms, principal, record.timestamp)
        return principal.name if _needs(data) in principal.grants and not is_ended_now else None

    def _learn(self, head: str) -> tuple[Principal | None, tuple[bytes, ...]]:
        """Derive the keys of a principal, and remember them; none for a head that names nobody."""
        principal = read_head(head) if self._roots else None
        if principal is None:
            return None, ()
        identity = principal, tuple(derive_secret(root, head).encode() for root in self._roots)
        if len(self._identities) < _MOST_HEADS:
            self._identities[head] = identity
        return identity


_MAC_BYTES = 32
_MOST_HEADS = 10_000
"""Heads whose secrets are remembered: anybody can write other ones."""


def _needs(value: bytes) -> Grant:
    """Return what a principal must be allowed to write a record."""
    from rollbus.schemas.codec import record_name  # with every record, which settings with keys do not need

    try:
        return "feedback" if record_name(value) == "RewardReported" else "record"
    except RecordError:
        return "record"


def make_signature(signer: str, secret: bytes, topic: str, key: bytes | None, value: bytes) -> Headers:
    """Return the header by which a signer vouches for a record of a topic, named in full."""
    return [(SIGNATURE_HEADER, signer.encode() + _mac(secret, signer, topic, key, value))]


def _mac(secret: bytes, signer: str, topic: str, key: bytes | None, value: bytes) -> bytes:
    restored_match = RESTORED.match(topic)
    parts = (signer.encode(), topic[restored_match.end() if restored_match else 0 :].encode(), key or b"", value)
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")
