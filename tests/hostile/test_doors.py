"""Every port through its door: names, origins, credentials, kinds, sizes and times; one test drives all servers."""

import asyncio
from dataclasses import replace

import pytest

from rollbus.stack_settings import HOST
from tests.hostile.doors import Place, ask
from tests.hostile.places import MIB, all_places, grpc_port, places
from tests.services.endpoint.guarded_endpoint import guarded

__all__ = ["all_places", "grpc_port", "guarded", "places"]
pytestmark = pytest.mark.services


async def check(place: Place) -> None:
    """Send requests that are wrong in one way each; raise AssertionError unless each gets the status next to it."""
    other = {"authorization", "cookie"}
    cases = {
        "nothing": (place.request(), 200),
        "name": (place.request(host="evil.example"), 403),
        "no name": (place.request("host"), 400),
        "origin": (place.request(origin="http://evil.example"), 403),
        "neighbour": (place.request(origin=f"http://{HOST}:1"), 403),
        "frame": (place.request(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="iframe"), 403),
        "sandbox": (place.request(origin="null"), 403),
        "image": (place.request(sec_fetch_site="cross-site", sec_fetch_mode="no-cors"), 403),
        "no credentials": (place.request(*other), place.refused),
        "wrong credentials": (place.request(*other, body=None, **place.wrong), place.refused),
        "stated size": (place.request(body=b"x", content_length=str(place.most + 1)), 413),
        "huge size": (place.request(body=b"x", content_length="9" * 30), 400),
        "no number": (place.request(body=b"x", content_length="-1"), 400),
        "stranger's size": (place.request(*other, body=b"x", content_length=str(10 * 1024 * MIB)), place.refused),
        "framed twice": (place.request(body=b"x", content_length="1", transfer_encoding="chunked"), 400),
        "head": (place.request(filler="x" * 2 * MIB), 0),
    }
    if place.checks_kind and place.method == "POST":
        cases["kind"] = (place.request(content_type="text/plain"), 415)
        cases["compressed"] = (place.request(content_encoding="gzip"), place.compressed)
    statuses = {what: (await ask(place.port, data))[0] for what, (data, _) in cases.items()}
    statuses["head"] %= 400  # a client that still sends may miss the answer
    assert statuses == {what: expected_status for what, (_, expected_status) in cases.items()}, place.name
    slash, _ = await ask(place.port, replace(place, path=f"{place.path}/").request(host=f"{HOST}:1"))
    assert slash // 100 != 3, f"{place.name} sends the caller to the name that it gave"


async def test_every_server_admits_only_its_principals(all_places: list[Place]) -> None:
    await asyncio.gather(*map(check, all_places))


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


async def test_no_request_after_an_ambiguously_framed_body_is_answered(all_places: list[Place]) -> None:
    """The connection is closed: what a proxy would read as a second request is none."""

    async def check_closed(place: Place) -> None:
        hidden = place.request()
        head = place.request(body=b"0\r\n\r\n" + hidden, transfer_encoding="chunked", connection="keep-alive")
        status, answer = await ask(place.port, head)
        assert (status, answer.count(b"HTTP/1.1 ")) == (400, 1), place.name

    await asyncio.gather(*map(check_closed, all_places))
