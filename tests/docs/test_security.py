"""The pages on security: each promise names the test that holds it, and each test that they name is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("security*.md"))}
TEST = re.compile(r"`(?:tests/[a-z_/]+/|tests/)?(test_[a-z_]+\.py)`")
TEST_FILE = re.compile(r"`(tests/[a-z_/]*test_[a-z_]+\.py)`")


def sections() -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each section, or of a page that has none."""
    for page, text in PAGES.items():
        titles_and_texts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:] or [page, text]
        yield from zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True)


def promises(text: str) -> dict[str, str]:
    """Return the bold beginnings of paragraphs, before what is not defended, with all up to the next one."""
    defended = text.partition("\nNot defended:")[0]
    titles_and_texts = re.split(r"^\*\*(.+?)\*\*", defended, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))


def test_every_test_that_a_page_names_is_there() -> None:
    pages = "\n".join(PAGES.values())
    names = set(TEST.findall(pages))
    assert len(names) > 20
    assert names <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert [place for place in TEST_FILE.findall(pages) if not (ROOT / place).exists()] == []


@pytest.mark.parametrize(("title", "text"), [pytest.param(*section, id=section[0]) for section in sections()])
def test_each_section_names_the_tests_that_hold_it(title: str, text: str) -> None:
    assert TEST.search(text), title


@pytest.mark.parametrize("page", ["security-producers", "security-influence"])
def test_each_promise_on_producers_names_the_test_that_holds_it(page: str) -> None:
    of_producers = promises(PAGES[page])
    assert len(of_producers) > 2
    assert [promise for promise, text in of_producers.items() if not TEST.search(text)] == []
