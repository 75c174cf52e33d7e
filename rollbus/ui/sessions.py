"""Who judges and acts on the page: a token, once → a session, until log-out, its end, or the page's restart.

The owner's token opens everything, under any name; a principal's that may report opens verdicts, under its own name.

The secret of a session is in a cookie that no script reads and no other site sends (HttpOnly, SameSite=Strict). But a
cookie goes to every port of this machine. So it opens nothing alone: whoever writes also brings the page's own token,
which the browser keeps for this address and port only.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from rollbus.runtime.http.guard import FindPrincipal, RefusedError, same
from rollbus.schemas.principals import OPERATOR, Principal, make_principal
from rollbus.schemas.wall_clock import wall_clock_ms

COOKIE = "rollbus-desk-"
"""With the port: a second page on this machine has a cookie of its own."""
LASTS_S = 12 * 3600
"""A working day."""
MOST_SESSIONS = 100
"""Sessions at a time: the oldest ends where one more begins."""
JUDGE = "judge"
"""Source of the verdicts of a principal, which may give nothing else."""


@dataclass(frozen=True, slots=True)
class PageJudge:
    """Who has a session."""

    name: str
    is_owner: bool

    @property
    def source(self) -> str:
        """Return the source of the judge's reports."""
        return OPERATOR if self.is_owner else JUDGE


class Sessions:
    """The open sessions, in memory: a restart ends them."""

    def __init__(
        self,
        owner_token: str | None,
        find_principal: FindPrincipal | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._owner_token, self._find_principal, self._clock_ms = owner_token, find_principal, clock_ms
        self._open: dict[str, tuple[PageJudge, int]] = {}
        """By the secret in the cookie: who it is, and when it ends, in ms."""

    def check_token(self, token: str) -> Principal | None:
        """Return whose token it is, None for the owner's; raises RefusedError for one that opens no session."""
        if self._owner_token is None:
            raise RefusedError(403, "this stack has no token, so the page writes nothing; start it with `rollbus up`")
        if same(token, self._owner_token):
            return None
        principal = self._find_principal(token) if self._find_principal is not None else None
        if principal is None or "feedback" not in principal.grants:
            raise RefusedError(403, "this is neither the owner's token nor one that may report feedback")
        return principal

    def begin(self, token: str, name: str) -> tuple[str, PageJudge]:
        """Open a session of a token and return its secret and its judge.

        Raises RefusedError for a token that opens none, ConfigurationError for a name that signs no record.
        """
        principal = self.check_token(token)
        judge = PageJudge(principal.name if principal else name or OPERATOR, is_owner=principal is None)
        if judge.name != OPERATOR:
            make_principal(judge.name, ["feedback"])
        while len(self._open) >= MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        secret = secrets.token_urlsafe(32)
        self._open[secret] = judge, self._clock_ms() + LASTS_S * 1000
        return secret, judge

    def judge_of(self, cookies: str) -> PageJudge | None:
        """Return the judge of these cookies; None if no session is open."""
        for secret in _secrets(cookies):
            judge, ends_ms = self._open.get(secret, (None, 0))
            if judge is not None and self._clock_ms() < ends_ms:
                return judge
        return None

    def end(self, cookies: str) -> None:
        """Close the session of these cookies."""
        for secret in _secrets(cookies):
            self._open.pop(secret, None)


def make_cookie(host: str, secret: str) -> str:
    """Return the header that sets the cookie of a page at `host`; an empty secret removes it."""
    _, _, port = host.rpartition(":")
    lasts_s = LASTS_S if secret else 0
    return f"{COOKIE}{port if port.isdigit() else 80}={secret}; Path=/api; Max-Age={lasts_s}; HttpOnly; SameSite=Strict"


def _secrets(cookies: str) -> list[str]:
    try:
        parsed = SimpleCookie(cookies)
    except CookieError:
        return []
    return [morsel.value for name, morsel in parsed.items() if name.startswith(COOKIE)]
