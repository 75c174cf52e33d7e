"""Principals: who may speak at a door, and the token by which each door and each worker knows them. Pure.

    rb.agent-7.fr.1.<mac>      name, what it may, generation, and an HMAC of these under the owner's `principals_key`

So no door keeps a list of tokens: who has the key derives each of them. The MAC is also the key with which a producer
signs its records. A token ends by its generation: `ended` names when. A record that the broker took before counts for
ever, so a replay comes to the same.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rollbus.schemas.errors import ConfigurationError

Grant = Literal["record", "feedback"]
"""record: ask the model, and write episodes; feedback: report rewards."""
GRANTS: tuple[Grant, ...] = get_args(Grant)
OWNER = "owner"
"""The principal with every grant; its token has no name in it."""
OPERATOR = "operator"
"""The principal of what the owner reports on the page."""
DOORS = (OPERATOR, "proxy", "ingest", "import")
"""Principals of what comes to one of our doors with the owner's token: no token of a principal has such a name."""
PREFIX = "rb"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
BY_OWNER = 0
"""Generation of what a process of the owner signs on behalf of a principal."""
_LETTERS: Mapping[str, Grant] = {"f": "feedback", "r": "record"}
_HEAD = re.compile(rf"{PREFIX}\.({NAME.pattern})\.([fr]{{1,2}})\.([0-9]{{1,6}})")
_MAC_BYTES = 24


@dataclass(frozen=True, slots=True)
class Principal:
    """Who speaks, and what it is granted."""

    name: str
    grants: frozenset[Grant]
    generation: int = 1
    """Counts the tokens of this name; 0 (`BY_OWNER`) is not a token's."""

    @property
    def head(self) -> str:
        """The part of its token that is not secret."""
        letters = "".join(letter for letter, grant in _LETTERS.items() if grant in self.grants)
        return f"{PREFIX}.{self.name}.{letters}.{self.generation}"


def make_principal(name: str, grants: Iterable[str], generation: int = 1) -> Principal:
    """Return a principal; raises ConfigurationError for a name or a grant that is not one."""
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{name!r} names no principal: use small letters, digits, `-` and `_`, 63 at most")
    if name in (OWNER, *DOORS):
        raise ConfigurationError(f"{name!r} names no principal: it is the name of rollbus's own; take another")
    grant_names = frozenset(grants)
    if not grant_names or grant_names - set(GRANTS):
        names = ", ".join(sorted(grant_names)) or "none of them"
        raise ConfigurationError(f"a principal may {' and '.join(GRANTS)}, or one of them; got {names}")
    return Principal(name, frozenset(grant for grant in GRANTS if grant in grant_names), generation)


def read_head(head: str) -> Principal | None:
    """Return the principal that the open part of a token names; None if it names none."""
    match = _HEAD.fullmatch(head)
    if match is None or match[1] == OWNER:
        return None
    grants = frozenset(_LETTERS[letter] for letter in match[2])
    principal = Principal(match[1], grants, int(match[3]))
    return principal if principal.head == head else None  # one principal has one head


def derive_secret(root: bytes, head: str) -> str:
    """Return the secret part of a token."""
    return urlsafe_b64encode(hmac.digest(root, b"principal\0" + head.encode(), "sha256")[:_MAC_BYTES]).decode()


def make_token(root: bytes, principal: Principal) -> str:
    """Return a principal's token."""
    return f"{principal.head}.{derive_secret(root, principal.head)}"


def split_token(token: str) -> tuple[str, bytes] | None:
    """Return the head of a token and the key by which its records are signed; None for a token of another form."""
    head, _, secret = token.rpartition(".")
    return (head, secret.encode()) if secret and read_head(head) is not None else None


def identify_token(roots: Iterable[bytes], token: str) -> Principal | None:
    """Return whose token it is; None if no principal's. `roots` are the owner's key and one that is being replaced."""
    head, _, secret = token.rpartition(".")
    principal = read_head(head)
    if principal is None or principal.generation == BY_OWNER:
        return None
    given_secret = secret.encode(errors="replace")
    is_right = [hmac.compare_digest(derive_secret(root, head).encode(), given_secret) for root in roots]
    return principal if any(is_right) else None


def is_ended(ended: Mapping[str, float], principal: Principal, at_ms: float) -> bool:
    """Say whether a token had ended at a time; `ended` has the moment by `NAME.GENERATION`."""
    return at_ms >= ended.get(f"{principal.name}.{principal.generation}", float("inf"))
