"""docs/security.md: each promise names the test that holds it, and each test that it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TEST = re.compile(r"`(?:tests/[a-z_/]+/|tests/)?(test_[a-z_]+\.py)`")
PLACED = re.compile(r"`(tests/[a-z_/]*test_[a-z_]+\.py)`")


def sections(page: str) -> dict[str, str]:
    """The page's sections by their titles."""
    titles_and_texts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))


def promises(section: str) -> dict[str, str]:
    """The bold beginnings of a section's paragraphs, before what is not defended, with all up to the next one."""
    defended = section.partition("\nNot defended:")[0]
    titles_and_texts = re.split(r"^\*\*(.+?)\*\*", defended, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))


def test_every_test_that_the_page_names_is_there() -> None:
    names = set(TEST.findall(PAGE))
    assert len(names) > 20
    assert names <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [place for place in PLACED.findall(PAGE) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("title", sections(PAGE))
def test_each_section_names_the_tests_that_hold_it(title: str) -> None:
    assert TEST.search(sections(PAGE)[title]), title


def test_each_promise_on_producers_names_the_test_that_holds_it() -> None:
    of_producers = promises(sections(PAGE)["Producers: what they may write, and what counts"])
    assert len(of_producers) > 6
    assert [promise for promise, text in of_producers.items() if not TEST.search(text)] == []
