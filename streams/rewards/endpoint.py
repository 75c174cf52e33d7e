"""A model to ask, behind an OpenAI-compatible endpoint: what a worker hands to the judges.

Errors say which endpoint and status; how long to wait and whether to try again is the caller's business.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.schemas.ids import parse_json
from rollbus.streams.rewards.contract import Option

TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500
BY_CALLER = aiohttp.ClientTimeout(total=None)
"""A reward's own `timeout_s` ends the call."""


class Endpoint:
    """Asks `<base_url>/chat/completions`; a reward's options `model`, `temperature` and `max_tokens` come first."""

    def __init__(self, base_url: str, model: str, *, api_key: str = "") -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __call__(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Option]) -> str:
        """Return the text of the first choice; raises UnavailableError or RejectedError."""
        body = {
            "model": options.get("model") or self._model,
            "messages": list(messages),
            "temperature": options.get("temperature") or 0,
            "max_tokens": options.get("max_tokens") or 512,
        }
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=BY_CALLER) as session,
                session.post(self._url, json=body) as response,
            ):
                if response.status >= SERVER_ERRORS or response.status == TOO_MANY_REQUESTS:
                    raise UnavailableError(f"{self._url} answered {response.status}")
                text = await response.text(errors="replace")
                if not response.ok:
                    raise RejectedError(f"{self._url} answered {response.status}: {text[:200]}")
                return _text(_parse_answer(text, self._url), self._url)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"{self._url} gave no answer: {error!r}") from error


def _parse_answer(text: str, url: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise RejectedError(f"{url} answered without JSON: {text[:200]}") from error


def _text(answer: Any, url: str) -> str:
    try:
        content = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise RejectedError(f"{url} answered without a choice: {str(answer)[:200]}") from error
    return content if isinstance(content, str) else ""
