"""Pages of the site that lie outside `docs/`, and links that lead out of it. MkDocs calls both functions.

README, ARCHITECTURE, CONTRIBUTING and CHANGELOG become pages, with their links turned to the site's. A link to a file
of the source, such as an example, becomes its path: the site has no copy of it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of a page to what the site has."""
    page_path = page.file.src_uri
    folder = "" if page_path in PAGES.values() else posixpath.dirname(f"docs/{page_path}")
    return LINK.sub(lambda match: _turn(*match.groups(), folder=folder, start=posixpath.dirname(page_path)), markdown)


def _turn(image: str, text: str, target: str, *, folder: str, start: str) -> str:
    whole = f"{image}[{text}]({target})"
    if "://" in target or target.startswith("#"):
        return whole
    path, _, anchor = target.partition("#")
    source = (ROOT / folder / path).resolve().relative_to(ROOT).as_posix()
    anchor = f"#{anchor}" if anchor else ""
    if source in PAGES or source.startswith("docs/"):
        of_site = posixpath.relpath(PAGES.get(source) or source.removeprefix("docs/"), start)
        return f"{image}[{text}]({of_site}{anchor})"
    return text if source == "docs" else f"{text} (`{source}`)"
