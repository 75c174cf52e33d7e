"""The principals of a folder of credentials: which tokens were made, and which have ended.

    principals_key      from which every token is derived; with it, no list is needed to know a token
    principals          a line of JSON for each name: what it may, its generation, and when earlier ones ended

A door looks at the file again when it has changed, so a token that was ended opens nothing from then on.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rollbus.runtime.credentials import AGENT_TOKEN, LOCK, REPORTER_TOKEN, make_secrets, read_secret
from rollbus.runtime.files import hold_lock, write_whole
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.principals import GRANTS, Principal, identify_token, is_ended, make_principal, make_token

PRINCIPALS_KEY, PRINCIPALS = "principals_key", "principals"


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A name's present token, and the moments at which tokens of it ended."""

    principal: Principal
    made_at: datetime
    ended_at: Mapping[int, datetime] = field(default_factory=dict)
    """By generation."""

    @property
    def ends_at(self) -> datetime | None:
        """When the present token ends, or has ended; None if no end was set."""
        return self.ended_at.get(self.principal.generation)


def read_tokens(folder: Path) -> dict[str, IssuedToken]:
    """Return what was issued, by name; raises ConfigurationError for a file that cannot be read."""
    path = folder / PRINCIPALS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text in UTF-8 ({error}); restore it from a copy") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); run as the user who ran `rollbus up`") from error
    try:
        tokens = [_token_of(json.loads(line)) for line in lines if line.strip()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path} holds no list of principals ({error!r}); restore it from a copy") from error
    return {token.principal.name: token for token in tokens}


def issue(folder: Path, name: str, may: Sequence[str], now: datetime) -> str:
    """Return the token of a new name; raises ConfigurationError for one that has a token already."""
    make_secrets(folder, (PRINCIPALS_KEY,))
    with _hold_list(folder):
        return _issue(folder, name, may, now)


def _issue(folder: Path, name: str, may: Sequence[str], now: datetime) -> str:
    earlier = read_tokens(folder).get(name)
    if earlier is not None and not _is_over(earlier, now):
        raise ConfigurationError(f"{name!r} has a token; `rollbus token rotate {name}` makes a new one, `end` ends it")
    generation = earlier.principal.generation + 1 if earlier else 1
    token = IssuedToken(make_principal(name, may, generation), now, earlier.ended_at if earlier else {})
    _write_token(folder, token)
    return make_token(root_of(folder), token.principal)


def make_principals(folder: Path) -> None:
    """Make what is missing of the local stack's own: one that records and reports, and one that only reports."""
    for name, file, may in (("agent", AGENT_TOKEN, GRANTS), ("reporter", REPORTER_TOKEN, ("feedback",))):
        if read_secret(folder, file) is not None:
            continue
        make_secrets(folder, (PRINCIPALS_KEY,))
        with _hold_list(folder):
            if read_secret(folder, file) is not None:  # another process has made it
                continue
            now = datetime.now(UTC)
            issued = read_tokens(folder).get(name)
            is_known = issued is not None and not _is_over(issued, now)
            token = _rotate(folder, name, now, timedelta()) if is_known else _issue(folder, name, may, now)
            write_whole(folder / file, token + "\n")


def rotate(folder: Path, name: str, now: datetime, overlap: timedelta) -> str:
    """Return a new token of a name; the one before counts for `overlap` longer."""
    with _hold_list(folder):
        return _rotate(folder, name, now, overlap)


def _rotate(folder: Path, name: str, now: datetime, overlap: timedelta) -> str:
    token = _require(folder, name)
    principal = replace(token.principal, generation=token.principal.generation + 1)
    ended_at = {**token.ended_at, token.principal.generation: min(now + overlap, token.ends_at or now + overlap)}
    _write_token(folder, IssuedToken(principal, now, ended_at))
    return make_token(root_of(folder), principal)


def end(folder: Path, name: str, now: datetime) -> None:
    """End every token of a name."""
    with _hold_list(folder):
        token = _require(folder, name)
        generations = range(1, token.principal.generation + 1)
        ended_at = {number: min(now, token.ended_at.get(number, now)) for number in generations}
        _write_token(folder, replace(token, ended_at=ended_at))


def root_of(folder: Path) -> bytes:
    """Return the key from which tokens are derived; raises ConfigurationError where there is none."""
    key = read_secret(folder, PRINCIPALS_KEY)
    if key is None:
        raise ConfigurationError(f"there is no {folder / PRINCIPALS_KEY}; `rollbus token create NAME` makes it")
    return key.encode()


def endings(folder: Path) -> dict[str, datetime]:
    """Return since when tokens count no more, by `NAME.GENERATION`."""
    tokens = read_tokens(folder)
    return {f"{name}.{number}": at for name, token in tokens.items() for number, at in token.ended_at.items()}


class PrincipalBook:
    """Knows the principals of a folder at a door."""

    def __init__(self, folder: Path) -> None:
        """Read the key now, and the endings whenever they change."""
        self._folder, self._seen_ns = folder, -1
        key = read_secret(folder, PRINCIPALS_KEY)
        self._roots = (key.encode(),) if key else ()
        self._ended_ms: Mapping[str, float] = {}

    def __call__(self, token: str) -> Principal | None:
        """Return whose token it is."""
        principal = identify_token(self._roots, token)
        if principal is None:
            return None
        self._follow_endings()
        return None if is_ended(self._ended_ms, principal, datetime.now(UTC).timestamp() * 1000) else principal

    def _follow_endings(self) -> None:
        with suppress(FileNotFoundError):
            changed_ns = (self._folder / PRINCIPALS).stat().st_mtime_ns
            if changed_ns != self._seen_ns:
                end_times = endings(self._folder)
                self._ended_ms, self._seen_ns = (
                    {name: at.timestamp() * 1000 for name, at in end_times.items()},
                    changed_ns,
                )


def _hold_list(folder: Path) -> AbstractContextManager[None]:
    """Let one process at a time read the list and write it again; a folder that is not there has no list."""
    return hold_lock(folder / LOCK) if folder.is_dir() else nullcontext()


def _write_token(folder: Path, token: IssuedToken) -> None:
    """Add a name's token, or replace it."""
    tokens = read_tokens(folder) | {token.principal.name: token}
    lines = (json.dumps(_plain_of(issued_token)) + "\n" for _, issued_token in sorted(tokens.items()))
    write_whole(folder / PRINCIPALS, "".join(lines))


def _require(folder: Path, name: str) -> IssuedToken:
    token = read_tokens(folder).get(name)
    if token is None:
        raise ConfigurationError(f"{name!r} has no token in {folder}; `rollbus token list` shows those that have")
    return token


def _is_over(token: IssuedToken, now: datetime) -> bool:
    return token.ends_at is not None and token.ends_at <= now


def _plain_of(token: IssuedToken) -> dict[str, Any]:
    return {
        "name": token.principal.name,
        "may": sorted(token.principal.grants),
        "generation": token.principal.generation,
        "made_at": token.made_at.isoformat(),
        "ended_at": {str(number): at.isoformat() for number, at in sorted(token.ended_at.items())},
    }


def _token_of(plain: Mapping[str, Any]) -> IssuedToken:
    principal = make_principal(plain["name"], plain["may"], int(plain["generation"]))
    ended_at = {int(number): datetime.fromisoformat(at) for number, at in plain["ended_at"].items()}
    return IssuedToken(principal, datetime.fromisoformat(plain["made_at"]), ended_at)
