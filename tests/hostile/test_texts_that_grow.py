"""YAML, JSON and spool files of a stranger: small texts that stand for large ones, and frames that are wrong."""

import os
import struct
import zlib
from pathlib import Path

import pytest

from rollbus.cli.yaml_text import read_yaml
from rollbus.producers.capture.attributes import parse
from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.sink import MemorySink, Outbound
from rollbus.producers.sending.spool import Spool
from rollbus.producers.sending.spool_sink import SpoolSink
from rollbus.schemas.errors import ConfigurationError, RejectedError
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.trainer.art_server.endpoint.tool_calls import read_tool_calls, with_parsed_arguments
from rollbus.trainer.backends.wire import request_from_bytes
from tests.waiting import until

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
DEEP = "[" * 200_000 + "]" * 200_000


def test_yaml_whose_aliases_stand_for_billions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "laughs.yaml"
    path.write_text(LAUGHS)
    with pytest.raises(ConfigurationError, match="more than"):
        load_settings(Settings, path, {})
    with pytest.raises(ConfigurationError, match="more than"):
        read_yaml(path)
    flow = "{" + ", ".join(LAUGHS.replace("\n", ", ").split(", ")).rstrip(", ") + "}"
    with pytest.raises(ConfigurationError):
        load_settings(Settings, None, {"ROLLBUS_RUNS": flow})


def test_yaml_that_is_too_deep_or_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    for text in (f"runs: {DEEP[:5_000]}", "a: &a [*a]", "# " + "x" * 5_000_000):
        path.write_text(text)
        with pytest.raises(ConfigurationError):
            load_settings(Settings, path, {})


def test_json_that_is_too_deep_is_wrong_json() -> None:
    with pytest.raises(ValueError, match="deep"):
        parse(DEEP)
    with pytest.raises(RejectedError, match="deep"):
        request_from_bytes(DEEP.encode() + b"\n")
    called = f"<tool_call>{DEEP}</tool_call>"
    assert read_tool_calls(called) == (called, [])
    call = {"function": {"name": "look", "arguments": DEEP}}
    assert with_parsed_arguments([{"tool_calls": [call]}]) == [{"tool_calls": [call]}]


def frame(topic: bytes, key: bytes = b"k", value: bytes = b"v", **lengths: int) -> bytes:
    """A frame of the spool whose checksum is right."""
    head = struct.pack(">qHI", 1, lengths.get("topic_size", len(topic)), lengths.get("key_size", len(key)))
    body = head + topic + key + value
    return struct.pack(">II", len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"\xff\xfe"),
        frame(b""),
        frame(b"no/topic"),
        frame(b"t" * 300),
        frame(b"topic", topic_size=60_000),
        frame(b"topic", key_size=2**31),
    ],
)
async def test_a_frame_that_names_no_topic_is_counted_and_the_rest_is_sent(tmp_path: Path, bad: bytes) -> None:
    spool = Spool(tmp_path, owner="one", quota_bytes=1_000_000)
    spool.append([Outbound("topic", b"k", b"first", 1)])
    spool.close()
    (segment,) = tmp_path.rglob("*.segment")  # noqa: ASYNC240
    good = segment.read_bytes()
    segment.write_bytes(good + bad + good)
    inner, counters = MemorySink(), Counters()
    sink = SpoolSink(lambda: inner, lambda: Spool(tmp_path, owner="two", quota_bytes=1_000_000), counters)
    await sink.start()
    await until(lambda: not list(tmp_path.rglob("*.segment")), "the spool is not sent")
    await sink.close()
    assert [record.value for record in inner.sent] == [b"first", b"first"]
    assert counters.get("spool_torn_bytes") == len(bad)


def test_everything_in_a_spool_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spool = Spool(tmp_path / "spool", owner="one", quota_bytes=1_000_000)
        spool.append([Outbound("topic", b"k", b"v", 1)])
        assert {oct(path.stat().st_mode & 0o077) for path in (tmp_path / "spool").rglob("*")} == {"0o0"}
        spool.close()
    finally:
        os.umask(before)
