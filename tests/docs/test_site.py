"""The site has every page. `make docs` builds it and fails on a warning, such as a link that leads nowhere."""

from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FROM_ROOT = {"index.md", "architecture.md", "changelog.md", "contributing.md"}


def pages_in(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:  # type: ignore[attr-defined]
            yield from pages_in(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    named = sorted(pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert named == sorted(
        [*(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")), *FROM_ROOT]
    )
