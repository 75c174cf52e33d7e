"""Every port through its door: names, origins, credentials, kinds, sizes and times; one test drives all servers."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.process.ports import find_free_port, is_free
from rollbus.streams.worker.metrics_server import MetricsServer
from rollbus.ui.app import page_token
from tests.hostile.doors import BEARER, JSON, TOKEN, Place, ask, basic, command
from tests.services.art_fixtures import ArtServer, Launcher
from tests.services.clickhouse_guarded import Guarded, guarded

__all__ = ["guarded"]
pytestmark = pytest.mark.services

MIB = 1 << 20
CHAT = b'{"model": "agent", "messages": [{"role": "user", "content": "choose"}], "max_tokens": 1}'
HEAD_S = 15.0
"""In which a silent connection must be closed; the servers grant 10 s, and ClickHouse's clients 30 s."""


@pytest.fixture(scope="module")
def places(
    art_launcher: Launcher, art_base_model: Path, guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Place]]:
    """All servers but the worker's, which lives in the test's loop."""
    folder = tmp_path_factory.mktemp("doors")
    art = ArtServer(art_launcher, art_base_model, folder / "art", options={"token": TOKEN})
    reader, owner = basic("readonly", guarded.reader_password), basic("default", guarded.password)
    wrong = {"authorization": "Bearer wrong"}
    with ExitStack() as stack:
        art.start()
        stack.callback(art.stop)
        proxy = find_free_port()
        upstream = ["--upstream", art.model_url, "--port", str(proxy)]
        stack.enter_context(command(folder, "proxy", "run", *upstream, ROLLBUS_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1"))
        line = stack.enter_context(command(folder, "ui", "--port", "0", ROLLBUS_CLICKHOUSE__PORT=str(guarded.port)))
        page = int(re.search(r":(\d+)/", line)[1])  # type: ignore[index]
        while is_free(proxy):
            time.sleep(0.1)
        cookie = {"cookie": f"rollbus-page={page_token(TOKEN)}"}
        bad_cookie = {"cookie": "rollbus-page=wrong"}
        chat: dict[str, Any] = {"path": "/v1/chat/completions", "method": "POST", "headers": JSON, "body": CHAT}
        sql: dict[str, Any] = {"method": "POST", "body": b"SELECT 1", "checks_kind": False, "refused": 403}
        yield [
            Place("model", art.model_port, credentials=BEARER, wrong=wrong, most=32 * MIB, **chat),
            Place("control", art.control_port, "/rollbus/v1/versions", BEARER, wrong, most=512 * MIB),
            Place("batches", art.control_port, credentials=BEARER, wrong=wrong, most=512 * MIB, **chat),
            Place("proxy", proxy, credentials=BEARER, wrong=wrong, most=64 * MIB, **chat),
            Place("page", page, "/static/page.js", cookie, bad_cookie),
            Place("owner", guarded.port, "/", owner, basic("default", "wrong"), most=256 * MIB, **sql),
            Place("reader", guarded.port, "/", reader, basic("readonly", "wrong"), most=MIB, **sql),
        ]


@pytest.fixture
async def all_places(places: list[Place]) -> AsyncIterator[list[Place]]:
    worker = MetricsServer("127.0.0.1", 0, metrics=lambda: "up 1\n", live=lambda: None, token=TOKEN)
    port = await worker.start()
    yield [*places, Place("metrics", port, "/metrics", BEARER, {"authorization": "Bearer wrong"})]
    await worker.stop()


async def check(place: Place) -> dict[str, int]:
    """Return what the server answered to each request, by what was wrong with it."""
    other = {"authorization", "cookie"}
    asked = {
        "nothing": place.request(),
        "name": place.request(host="evil.example"),
        "no name": place.request("host"),
        "origin": place.request(origin="http://evil.example"),
        "sandbox": place.request(origin="null"),
        "image": place.request(sec_fetch_site="cross-site", sec_fetch_mode="no-cors"),
        "no credentials": place.request(*other),
        "wrong credentials": place.request(*other, body=None, **place.wrong),
        "stated size": place.request(body=b"x", content_length=str(place.most + 1)),
        "huge size": place.request(body=b"x", content_length="9" * 30),
        "no number": place.request(body=b"x", content_length="-1"),
        "stranger's size": place.request(*other, body=b"x", content_length=str(10 * 1024 * MIB)),
        "head": place.request(filler="x" * 2 * MIB),
    }
    if place.checks_kind and place.method == "POST":
        asked["kind"] = place.request(content_type="text/plain")
        asked["compressed"] = place.request(content_encoding="gzip")
    return {what: (await ask(place.port, data))[0] for what, data in asked.items()}


async def test_every_server_lets_in_only_whom_it_should(all_places: list[Place]) -> None:
    found = dict(zip([one.name for one in all_places], await asyncio.gather(*map(check, all_places)), strict=True))
    for place in all_places:
        statuses = found[place.name]
        wanted = {
            "nothing": 200,
            "name": 403,
            "no name": 400,
            "origin": 403,
            "sandbox": 403,
            "image": 403,
            "no credentials": place.refused,
            "wrong credentials": place.refused,
            "stated size": 413,
            "huge size": 400,
            "no number": 400,
            "stranger's size": place.refused,
            "head": 0,
            "kind": 415,
            "compressed": 415,
        }
        statuses["head"] %= 400  # a client that still sends may miss the answer
        assert statuses == {what: wanted[what] for what in statuses}, place.name


async def test_a_streamed_body_is_cut_at_its_bound(all_places: list[Place]) -> None:
    for place in all_places:
        if 0 < place.most <= 64 * MIB:
            head = place.request("content-length", body=b"", transfer_encoding="chunked")
            piece = b"10000\r\n" + bytes(65_536) + b"\r\n"
            status, _ = await ask(place.port, head, *[piece] * (place.most // 65_536 + 2))
            assert status in (413, 0), place.name


async def test_silent_and_slow_requests_are_ended(all_places: list[Place]) -> None:
    """Half a head, and half a body that comes on byte by byte: a hundred of each, on every server."""

    async def hold(place: Place, *pieces: bytes) -> tuple[str, int]:
        return place.name, (await ask(place.port, *pieces, pause_s=1.0))[0]

    trickle = [b"x"] * 60
    waiting = []
    for place in all_places:
        if place.method == "POST":
            slow = place.request(body=b" ", content_length="1000")
            waiting += [hold(place, slow, *trickle) for _ in range(100)]
        waiting += [hold(place, place.request()[:20], *trickle) for _ in range(10)]
    statuses = await asyncio.gather(*waiting)
    assert {status for _, status in statuses} <= {408, 0}
