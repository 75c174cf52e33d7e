"""Public names that are imported when first used."""

import pytest

from rollbus.runtime.lazy import lazy_names


def test_a_name_comes_from_its_module() -> None:
    assert lazy_names("rollbus.schemas", {"encode": "codec"})("encode").__module__ == "rollbus.schemas.codec"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lazy_names("rollbus.schemas", {"encode": "codec"})("nothing")


@pytest.mark.parametrize(
    ("package", "name", "module"),
    [("rollbus.schemas", "codec", "codec"), ("rollbus.consumers.clickhouse", "ask", "ask.saved")],
)
def test_a_name_that_its_module_or_folder_would_hide_is_refused(package: str, name: str, module: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is the name of a module"):
        lazy_names(package, {name: module})
