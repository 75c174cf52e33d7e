"""A function of the user's is found, or the message says in which Python it is missing and what mends that."""

import sys
from pathlib import Path

import pytest

from rollbus.cli.objects import load_object
from rollbus.schemas.errors import ConfigurationError


def test_a_missing_package_is_named_with_its_python_and_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_of_a_test.py").write_text("import no_such_framework\n")
    with pytest.raises(ConfigurationError) as refusal:
        load_object("shop_of_a_test:again", "agent")
    message = str(refusal.value)
    assert f"'shop_of_a_test:again' needs no_such_framework, which {sys.executable}, the Python" in message
    assert "install" in message.rpartition("run: ")[2]
    assert message.endswith(" no_such_framework")
