"""Addresses of this machine are asked directly, whatever proxy the environment names: a proxy would ask its own.

HTTP libraries read `http_proxy` and its kin, and leave out what `no_proxy` lists; none of them leaves out loopback by
itself.
"""

from collections.abc import MutableMapping
from urllib.parse import urlsplit

from rollbus.runtime.machine import LOCAL_NAMES

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = "no_proxy"
ALL = "*"


def ask_loopback_directly(environ: MutableMapping[str, str]) -> None:
    """Add the names of this machine to the exceptions, for every HTTP client of the process and of those it starts.

    Without a proxy nothing is written. Libraries look at the name in lower case first.
    """
    if not any(environ.get(name) or environ.get(name.upper()) for name in PROXIES):
        return
    exceptions = environ.get(EXCEPTIONS) or environ.get(EXCEPTIONS.upper()) or ""
    names = [name for name in (part.strip() for part in exceptions.split(",")) if name]
    if ALL not in names:
        environ[EXCEPTIONS] = ",".join([*names, *sorted(LOCAL_NAMES - {*names})])


def may_use_proxy(url: str) -> bool:
    """Say whether a client of this address may look for a proxy: httpx's `trust_env`."""
    return urlsplit(url).hostname not in LOCAL_NAMES
