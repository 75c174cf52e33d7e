"""The credentials of the local stack: a folder that only its owner can read, with a file for each.

    token                          bearer token of every port of ours
    clickhouse_password            of ClickHouse's user `default`
    clickhouse_readonly_password   of its user `readonly`
    metrics_token                  bearer token of `/metrics` alone; without it, `token`
    owner_key                      signs ticks and configurations, in a stack that has had one from its beginning
    principals_key                 from which the tokens of producers and reporters are derived
    principals                     which of these were made, and have ended; no secret
    agent_token, reporter_token    of two principals of the local stack: one may record and report, one only report
    ports                          where servers that know the token listen, a line each; no secret

`rollbus up` makes them in `secrets` of its data folder; ROLLBUS_SECRETS names another folder, such as the one where
containers find their secrets.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from rollbus.runtime.files import hold_lock, write_whole
from rollbus.runtime.machine import LOCAL_NAMES
from rollbus.schemas.errors import ConfigurationError

TOKEN, PASSWORD, READONLY_PASSWORD = "token", "clickhouse_password", "clickhouse_readonly_password"
METRICS_TOKEN, OWNER_KEY, PORTS = "metrics_token", "owner_key", "ports"
AGENT_TOKEN, REPORTER_TOKEN = "agent_token", "reporter_token"
USUAL_PORTS = frozenset({7623, 8000, 8001})
"""Ports of art-server and the proxy where no file names theirs, such as with containers."""
LOCK = ".lock"
"""Held while a credential is made, or the list of principals changes."""
FOLDER_VARIABLE = "ROLLBUS_SECRETS"
TOKEN_VARIABLE = "ROLLBUS_ART_SERVER__TOKEN"
"""The setting's own variable."""
PRINCIPAL_VARIABLE = "ROLLBUS_TOKEN"
"""Holds the token of the principal that a program is."""
DATA_DIR = Path(".rollbus")
NO_TOKEN = "none"
"""What OpenAI's clients send where there is none: they refuse an empty key."""
_BYTES = 32


def secrets_folder(data_dir: Path, environment: Mapping[str, str]) -> Path:
    """Return where the credentials of the stack with this data folder are."""
    named_folder = environment.get(FOLDER_VARIABLE)
    return Path(named_folder) if named_folder else data_dir / "secrets"


def read_secret(folder: Path, name: str) -> str | None:
    """Return a credential, None if there is none; raises ConfigurationError if it may not be read."""
    path = folder / name
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the credential {path} cannot be read ({error}); run as the user who ran `rollbus up`, "
            f"or name another folder in {FOLDER_VARIABLE}"
        ) from error


def make_secrets(folder: Path, names: Sequence[str] = (TOKEN, PASSWORD, READONLY_PASSWORD)) -> None:
    """Make what is missing, readable by this user only; another process may do the same at this moment."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        if read_secret(folder, name) is not None:
            continue
        with hold_lock(folder / LOCK):
            if read_secret(folder, name) is None:
                write_whole(folder / name, secrets.token_urlsafe(_BYTES) + "\n")


def record_ports(folder: Path, *ports: int) -> None:
    """Note where servers that know the token listen: it goes to no other port. A folder that is read only stays."""
    path = folder / PORTS
    new = [port for port in ports if port not in _ports_in(path)]
    if new and folder.is_dir():
        with suppress(OSError), path.open("a", encoding="ascii") as file:
            file.writelines(f"{port}\n" for port in new)


def read_token(url: str) -> str:
    """Return the API key for a client of the model at `url`, if that is a server of this stack.

    It is the principal's that the program is (ROLLBUS_TOKEN); else the owner's, from ROLLBUS_ART_SERVER__TOKEN; else
    what `rollbus up` made here for agents. Elsewhere it is `none`: a server that asks for a token then says so, and the
    token has not left this machine.
    """
    if url and is_local(url) and (principal_token := os.environ.get(PRINCIPAL_VARIABLE)):
        return principal_token
    token = token_for(url)
    if token is None or os.environ.get(TOKEN_VARIABLE):
        return token or NO_TOKEN
    return read_secret(secrets_folder(DATA_DIR, os.environ), AGENT_TOKEN) or token


def find_own_token(bootstrap_servers: str) -> str | None:
    """Return the token by which a program signs what it records: ROLLBUS_TOKEN, or an agent's of the stack here."""
    if principal_token := os.environ.get(PRINCIPAL_VARIABLE):
        return principal_token
    if all(is_local(f"//{server.strip()}") for server in bootstrap_servers.split(",")):
        with suppress(ConfigurationError):  # another user's stack: what is recorded is then nobody's
            return read_secret(secrets_folder(DATA_DIR, os.environ), AGENT_TOKEN)
    return None


def token_for(url: str | None) -> str | None:
    """Return the stack's token for one of its servers; None for any other, or where there is none.

    A token in the environment was given to this process by hand, so any port of this machine may be its server's.
    """
    if not url or not is_local(url):
        return None
    if given_token := os.environ.get(TOKEN_VARIABLE):
        return given_token if given_token != NO_TOKEN else None
    folder, parts = secrets_folder(DATA_DIR, os.environ), urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return read_secret(folder, TOKEN) if port in (_ports_in(folder / PORTS) or USUAL_PORTS) else None


def is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    try:
        return urlsplit(url).hostname in LOCAL_NAMES and urlsplit(url).port != 0
    except ValueError:
        return False


def _ports_in(path: Path) -> set[int]:
    try:
        return {int(line) for line in path.read_text(encoding="ascii").split()}
    except (OSError, ValueError):
        return set()
