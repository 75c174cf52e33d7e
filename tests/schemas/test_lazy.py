"""Public names that are imported when first used."""

import pytest

from rollbus.schemas.lazy import lazy_names


def test_a_name_comes_from_its_module() -> None:
    assert lazy_names("rollbus.schemas", {"encode": "codec"})("encode").__module__ == "rollbus.schemas.codec"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lazy_names("rollbus.schemas", {"encode": "codec"})("nothing")


def test_a_name_that_its_module_would_hide_is_refused() -> None:
    with pytest.raises(ValueError, match="codec is the name of a module"):
        lazy_names("rollbus.schemas", {"codec": "codec"})


def test_a_name_that_a_folder_would_hide_is_refused() -> None:
    with pytest.raises(ValueError, match="ask is the name of a module"):
        lazy_names("rollbus.consumers.clickhouse", {"ask": "ask.saved"})
