"""The credentials of the local stack: a folder that only its owner can read, with a file for each.

    token                          bearer token of every port of ours
    clickhouse_password            of ClickHouse's user `default`
    clickhouse_readonly_password   of its user `readonly`
    owner_key                      signs ticks and configurations, in a stack that has had one from its beginning

`rollbus up` makes them in `secrets` of its data folder; ROLLBUS_SECRETS names another folder, such as the one where
containers find their secrets.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.http.guard import LOCAL_NAMES

TOKEN, PASSWORD, READONLY_PASSWORD = "token", "clickhouse_password", "clickhouse_readonly_password"
OWNER_KEY = "owner_key"
FOLDER_VARIABLE = "ROLLBUS_SECRETS"
TOKEN_VARIABLE = "ROLLBUS_ART_SERVER__TOKEN"
"""The setting's own variable."""
DATA_DIR = Path(".rollbus")
NO_TOKEN = "none"
"""What OpenAI's clients send where there is none: they refuse an empty key."""
_BYTES = 32


def secrets_folder(data_dir: Path, environment: Mapping[str, str]) -> Path:
    """Return where the credentials of the stack with this data folder are."""
    named = environment.get(FOLDER_VARIABLE)
    return Path(named) if named else data_dir / "secrets"


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
        path, own = folder / name, folder / f".{name}.{os.getpid()}"
        if read_secret(folder, name) is not None:
            continue
        own.unlink(missing_ok=True)
        with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
        try:
            os.link(own, path)
        except FileExistsError:
            pass
        finally:
            own.unlink()


def read_token() -> str:
    """Return the stack's token, for the API key of a client: from ROLLBUS_ART_SERVER__TOKEN, or from `rollbus up` here.

    Where neither is, `none`: a server that asks for a token then says so.
    """
    folder = secrets_folder(DATA_DIR, os.environ)
    return os.environ.get(TOKEN_VARIABLE) or read_secret(folder, TOKEN) or NO_TOKEN


def token_for(url: str | None) -> str | None:
    """Return the stack's token for a server on this machine; None for any other, or where there is none."""
    token = read_token() if url and urlsplit(url).hostname in LOCAL_NAMES else NO_TOKEN
    return None if token == NO_TOKEN else token
