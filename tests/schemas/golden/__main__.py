"""`python -m tests.schemas.golden --write`: add the files that are missing; `--replace`: write all of them again."""

import sys

from tests.schemas.golden import write_missing

if sys.argv[1:] not in (["--write"], ["--replace"]):
    sys.exit("usage: python -m tests.schemas.golden --write | --replace")
for path in write_missing(replace=sys.argv[1:] == ["--replace"]):
    print(path.name)
