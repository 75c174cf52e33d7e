"""The site has every page, each short and with a command at its beginning.

`make docs` builds it and fails on a warning, such as a link that leads nowhere.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FROM_ROOT = {"index.md", "architecture.md", "changelog.md", "contributing.md"}
GENERATED_PAGE = "settings-reference.md"
MOST_WORDS = 1_500
COMMAND = re.compile(r"^(```| {4}\S)", flags=re.MULTILINE)


def pages_in(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:  # type: ignore[attr-defined]
            yield from pages_in(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    named = sorted(pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert named == sorted([*(path.relative_to(ROOT / "docs").as_posix() for path in PAGES), *FROM_ROOT])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_one_task_long(page: Path) -> None:
    words = sum(1 for word in page.read_text().split() if re.search("[A-Za-z]", word))
    assert words <= MOST_WORDS or page.name == GENERATED_PAGE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_something_to_run(page: Path) -> None:
    beginning = page.read_text().split("\n## ")[0]
    assert COMMAND.search(beginning) or page.name == GENERATED_PAGE
