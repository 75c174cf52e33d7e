"""The guard before every server, asked as a browser asks for the page it shows; `tests/hostile` asks real ports."""

from typing import Any

import pytest

from rollbus.runtime.http.guard import Door, Guard, token_admits

HOST = "127.0.0.1:8000"
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


async def status_of(method: str = "GET", **headers: str) -> int:
    """Return the status that a request gets from a server without a token."""
    sent = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": method, "path": "/", "headers": raw}
    await Guard(app, Door(token_admits(None), 0))(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"},
        {"host": "localhost:8000", "origin": "http://LOCALHOST:8000"},
        LINK,
        LINK | {"sec-fetch-dest": "document"},
    ],
)
async def test_programs_own_pages_and_links_come_in(headers: dict[str, str]) -> None:
    assert await status_of(**headers) == 200


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"host": "evil.example:8000"}),
        ("POST", {"origin": "http://evil.example:8000"}),
        ("POST", {"origin": "http://127.0.0.1:9"}),
        ("POST", {"origin": "http://127.0.0.1"}),
        ("POST", {"origin": "http://localhost:8000"}),
        ("HEAD", {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}),
        ("GET", LINK | {"sec-fetch-dest": "iframe"}),
        ("POST", LINK | {"sec-fetch-dest": "document"}),
    ],
)
async def test_requests_of_another_page_are_refused(method: str, headers: dict[str, str]) -> None:
    """From another name, from another program's port on this machine, or in a frame."""
    assert await status_of(method, **headers) == 403


async def test_an_ambiguously_framed_body_is_refused() -> None:
    """A proxy that follows the other framing would take the rest for a request of its own."""
    assert await status_of("POST", content_length="5", transfer_encoding="chunked") == 400
    assert await status_of("POST", content_length="0", transfer_encoding="identity") == 400
