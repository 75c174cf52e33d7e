"""A workflow behind an HTTP address: post an input, read the output from the answer.

The request carries the episode's headers, so a service that records with rollbus continues the same episode
(`recorder.attach(request.headers)`); it flushes before it answers, since the episode ends with the answer.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rollbus.harness.builder import Builder
from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError


@asynccontextmanager
async def endpoint_workflow(
    url: str, timeout_s: float, result_json_path: str, builder: Builder
) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
    """Yield the function that asks the address."""
    import httpx

    path = json_path(result_json_path)
    async with httpx.AsyncClient(timeout=timeout_s) as client:

        async def run(value: Any) -> Any:
            headers = builder.recording.recorder.headers() if builder.recording is not None else {}
            body = value if isinstance(value, dict) else {"input_message": value}
            try:
                answer = await client.post(url, json=body, headers=headers)
            except httpx.HTTPError as error:
                raise UnavailableError(f"endpoint {url}: {error!r}") from error
            if answer.status_code >= 400:
                raise RejectedError(f"endpoint {url} answered {answer.status_code}: {answer.text[:200]}")
            is_json = "json" in answer.headers.get("content-type", "")
            return pick(answer.json(), path) if is_json else answer.text

        yield run


def json_path(text: str) -> tuple[str | int, ...]:
    """Parse `$`, `$.value` or `$.choices[0].text`; raises ConfigurationError."""
    if not text.startswith("$"):
        raise ConfigurationError(f"--result_json_path {text!r} must begin with $, as in $.value")
    parts: list[str | int] = []
    for part in text[1:].replace("[", ".[").split("."):
        if part.startswith("[") and part.endswith("]"):
            inner = part[1:-1].strip("'\"")
            parts.append(int(inner) if inner.isdigit() else inner)
        elif part:
            parts.append(part)
    return tuple(parts)


def pick(value: Any, path: tuple[str | int, ...]) -> Any:
    """Follow a path; raises RejectedError where the answer has no such place."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError) as error:
            raise RejectedError(f"the endpoint's answer has no {part!r}; see --result_json_path") from error
    return value
