"""Who may ask the page's server what: its token reads, a session writes.

The page's own files are open: they are the same for everybody.
"""

import hmac

from rollbus.runtime.http.guard import Door, RefusedError, RequestHead, same
from rollbus.ui.sessions import Sessions

SESSION = "/api/session"
VERDICTS, DATA_SETS, ACTIONS = "/api/verdicts", "/api/data-sets", "/api/actions"
WRITING = (VERDICTS, DATA_SETS, ACTIONS)
FORM_BYTES = 16 * 1024


def page_door(token: str | None, sessions: Sessions) -> Door:
    """What the page asks of a request: its token as a bearer, of an event stream in the address; to write, a session.

    The page's own files are open: they are the same for everybody.
    """

    def admit(head: RequestHead) -> int:
        if head.path == "/" or head.path.startswith("/static/"):
            return 0
        if head.method == "POST" and head.path == SESSION:
            sessions.check_token(head.bearer())
            return FORM_BYTES
        given_token = head.bearer() or (head.query.get("token", "") if head.path == "/api/live" else "")
        if token is not None and not same(given_token, token):
            raise RefusedError(401, "open the address that `rollbus ui` has printed")
        if head.method != "POST" or head.path not in WRITING:
            return 0
        judge = sessions.judge_of(head.headers.get("cookie", ""))
        if judge is None:
            raise RefusedError(403, "log in first")
        if not judge.is_owner and head.path != VERDICTS:
            raise RefusedError(403, f"this takes a session of the owner's token; {judge.name} may give verdicts")
        return FORM_BYTES

    return Door(
        admit,
        FORM_BYTES,
        describe=lambda refusal, head: ({"content-type": "text/plain"}, f"{refusal.message}\n".encode()),
    )


def page_token(token: str) -> str:
    """Return the page's own token, the same at each start; who learns it cannot train."""
    return hmac.new(token.encode(), b"page", "sha256").hexdigest()
