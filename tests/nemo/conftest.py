"""The toolkit writes its configuration after each evaluation: here in C, as in Python it took a fifth of a run."""

from collections.abc import Iterator

import pytest
import yaml


@pytest.fixture(scope="package", autouse=True)
def _yaml_in_c() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(yaml, "SafeDumper", yaml.CSafeDumper)
        yield
