"""A file is replaced whole, and its draft never stays."""

from pathlib import Path

import pytest

from rollbus.runtime.files import BY_UMASK, draft_of, write_whole


def write_half(path: Path) -> None:
    with draft_of(path) as draft:
        draft.write_text("half")
        raise ValueError("a mistake")


def test_a_draft_that_is_not_finished_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    write_whole(path, "earlier")
    with pytest.raises(ValueError, match="a mistake"):
        write_half(path)
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_private_unless_it_is_asked_for_more(tmp_path: Path) -> None:
    write_whole(tmp_path / "secret", "s")
    write_whole(tmp_path / "output", "o", BY_UMASK)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes["secret"] == 0o600
    assert modes["output"] & 0o600 == 0o600
    (tmp_path / "plain").touch()
    assert modes["output"] == (tmp_path / "plain").stat().st_mode & 0o777
