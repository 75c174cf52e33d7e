"""`python -m tests.upgrade --write VERSION`: keep what the release that is made leaves with its users."""

import sys

from rollbus import __version__
from tests.upgrade import FOLDER, write_release

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write", version] if version == __version__:
            write_release(FOLDER / version, FOLDER.parents[1] / "docs" / "settings.md")
            print(f"wrote {FOLDER / version}")
        case _:
            sys.exit(f"usage: python -m tests.upgrade --write {__version__}")
