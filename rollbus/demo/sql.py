"""SQL and parameters → rows, over ClickHouse's HTTP protocol with the standard library alone; for small answers."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.errors import RejectedError, UnavailableError

TIMEOUT_S = 20.0

Ask = Callable[..., "Rows"]
"""`ask(sql, **parameters)`; a parameter is written `{name:Type}` in the text."""


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def one(self) -> Mapping[str, Any]:
        """The only row, by column; empty where there is none."""
        return dict(zip(self.columns, self.rows[0], strict=True)) if self.rows else {}


def over_http(url: str, database: str) -> Ask:
    """Ask the ClickHouse at `url`; raises UnavailableError and RejectedError."""

    def ask(sql: str, **parameters: object) -> Rows:
        query = {
            "database": database,
            "default_format": "JSONCompact",
            "output_format_json_quote_64bit_integers": "0",
            **{f"param_{name}": str(value) for name, value in parameters.items()},
        }
        request = urllib.request.Request(f"{url}/?{urllib.parse.urlencode(query)}", data=sql.encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                body = json.load(response)
        except urllib.error.HTTPError as error:
            detail = error.read().decode(errors="replace").strip()
            raise RejectedError(f"ClickHouse at {url} refused the question: {detail[:500]}") from error
        except (OSError, ValueError) as error:
            raise UnavailableError(f"ClickHouse at {url} did not answer: {error}") from error
        return Rows(tuple(column["name"] for column in body["meta"]), tuple(tuple(row) for row in body["data"]))

    return ask
