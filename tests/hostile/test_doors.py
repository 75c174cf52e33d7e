"""Every port through its door: names, origins, credentials, kinds, sizes and times; one test drives all servers."""

import asyncio
from dataclasses import replace

import pytest

from rollbus.local.process.settings import HOST
from tests.hostile.doors import Place, ask
from tests.hostile.places import MIB, all_places, grpc_port, places
from tests.services.endpoint.guarded import guarded

__all__ = ["all_places", "grpc_port", "guarded", "places"]
pytestmark = pytest.mark.services


async def check(place: Place) -> dict[str, int]:
    """Return what the server answered to each request, by what was wrong with it."""
    other = {"authorization", "cookie"}
    asked = {
        "nothing": place.request(),
        "name": place.request(host="evil.example"),
        "no name": place.request("host"),
        "origin": place.request(origin="http://evil.example"),
        "neighbour": place.request(origin=f"http://{HOST}:1"),
        "frame": place.request(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe"),
        "sandbox": place.request(origin="null"),
        "image": place.request(sec_fetch_site="cross-site", sec_fetch_mode="no-cors"),
        "no credentials": place.request(*other),
        "wrong credentials": place.request(*other, body=None, **place.wrong),
        "stated size": place.request(body=b"x", content_length=str(place.most + 1)),
        "huge size": place.request(body=b"x", content_length="9" * 30),
        "no number": place.request(body=b"x", content_length="-1"),
        "stranger's size": place.request(*other, body=b"x", content_length=str(10 * 1024 * MIB)),
        "head": place.request(filler="x" * 2 * MIB),
        "slash": replace(place, path=f"{place.path}/").request(host=f"{HOST}:1"),
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
            "neighbour": 403,
            "frame": 403,
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
            "compressed": place.compressed,
        }
        assert statuses.pop("slash") // 100 != 3, f"{place.name} sends the caller to the name that it gave"
        statuses["head"] %= 400  # a client that still sends may miss the answer
        assert statuses == {what: wanted[what] for what in statuses}, place.name


async def test_a_streamed_body_is_cut_at_its_bound(all_places: list[Place]) -> None:
    for place in all_places:
        if 0 < place.most <= 64 * MIB:
            head = place.request("content-length", body=b"", transfer_encoding="chunked")
            piece = b"10000\r\n" + bytes(65_536) + b"\r\n"
            status, _ = await ask(place.port, head, *[piece] * (place.most // 65_536 + 2))
            assert status in (413, 0), place.name


PATIENCE_S = 300.0
"""A server that waits for so long waits for ever. Its own limits are 10 s; a thousand connections on two busy cores
take more."""


async def test_silent_and_slow_requests_are_ended(all_places: list[Place]) -> None:
    """Half a head, and half a body that comes on byte by byte: a hundred of each, on every server."""

    async def hold(place: Place, *pieces: bytes) -> tuple[str, int]:
        return place.name, (await ask(place.port, *pieces, pause_s=1.0, within_s=PATIENCE_S))[0]

    trickle = [b"x"] * int(2 * PATIENCE_S)
    waiting = []
    for place in all_places:
        if place.method == "POST":
            slow = place.request(body=b" ", content_length="1000")
            waiting += [hold(place, slow, *trickle) for _ in range(100)]
        waiting += [hold(place, place.request()[:20], *trickle) for _ in range(10)]
    statuses = await asyncio.gather(*waiting)
    assert {status for _, status in statuses} <= {408, 0}
