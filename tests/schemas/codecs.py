"""The two ways to write and read a record, for tests that must hold of both."""

import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from rollbus.schemas import codec


@contextmanager
def using(way: str) -> Iterator[None]:
    """Let the codec use `native` or `by_fastavro`, and afterwards what it used before."""
    if way == "native" and not buildable():
        pytest.skip("no C compiler or no Python.h here: the native codec is not built")
    before = vars(codec)["avro"]
    _switch(import_module(f"rollbus.schemas.avro.{way}"))
    try:
        yield
    finally:
        _switch(before)


def _switch(way: object) -> None:
    setattr(codec, "avro", way)  # noqa: B010
    codec._writer.cache_clear()
    codec._readers.cache_clear()
    codec.headers.cache_clear()


def buildable() -> bool:
    """Say whether set-up could build C here."""
    return bool(shutil.which("cc")) and Path(sysconfig.get_path("include"), "Python.h").exists()
