"""A store that the disk has no room for says so, whatever was to be written, and goes on once there is room."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollbus.producers.imports.store import Store
from rollbus.schemas.errors import UnavailableError

LONG = "x" * 10_000


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda store: store.set_position("file", {"text": LONG}), id="a position"),
        pytest.param(lambda store: store.count({LONG: 1}), id="a count"),
    ],
)
def test_a_full_disk_takes_nothing_and_the_store_goes_on_after_it(
    tmp_path: Path, write: Callable[[Store], None]
) -> None:
    store = Store(tmp_path / "store.sqlite")
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError, match="takes no more: database or disk is full"):
        write(store)
    store._db.execute("PRAGMA max_page_count = 1000000")
    write(store)
    store.commit()
    assert store.position("file") or store.counts()
    store.close()
