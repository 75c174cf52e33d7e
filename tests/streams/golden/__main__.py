"""`python -m tests.streams.golden --write`: add the files that are missing."""

import sys

from tests.streams.golden import write_missing

if sys.argv[1:] != ["--write"]:
    sys.exit("usage: python -m tests.streams.golden --write")
for written in write_missing():
    print(written.name)
