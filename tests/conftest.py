"""How Hypothesis runs here: by no clock, since machines are shared, and with the same examples on every run of CI.

And Ctrl-C is heard, also by what tests start: a shell's job in the background is made to ignore it, and so are its own.
"""

import gc
import os
import re
import signal
import sys
from collections.abc import Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import count_examples
from tests.faults.seed import REPEAT
from tests.installs import install, uv, wheel

__all__ = ["install", "uv", "wheel"]

settings.register_profile(
    "rollbus",
    max_examples=count_examples(100),  # as Hypothesis has it
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("rollbus")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


DEAR = re.compile(r"\b(art_server|install|wheel): [A-Z]")
"""Fixtures that cost a server or a build, as parameters of a test or of a fixture."""
NOT_FOR_ALL = set(os.environ.get("TESTS_WITHOUT", "").split())
"""Packages that no module of this run imports."""
SHARED_WITH = {"install": "wheel"}
SPREAD = "tests/streams/simulation/"
"""A folder whose tests share nothing and take long: each goes to the process that is free."""


def pytest_configure(config: pytest.Config) -> None:
    """Pass over a warning of the NeMo Agent Toolkit's imports, where it is installed."""
    if find_spec("authlib"):
        config.addinivalue_line("filterwarnings", "ignore::authlib.deprecate.AuthlibDeprecationWarning")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, and leave out what they made: it took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a module that makes every process of a large run import what only a few of its tests need."""
    before = NOT_FOR_ALL & sys.modules.keys()
    report = yield
    if costly := NOT_FOR_ALL & sys.modules.keys() - before:
        report.outcome = "failed"
        report.longrepr = (
            f"imports {', '.join(sorted(costly))}, which costs each process of this run seconds and memory: "
            "give its file to FRAMEWORKS or MODELS of tests/Makefile, or import it in the test"
        )
    return report


def pytest_report_header(config: pytest.Config) -> str | None:
    """Print the seed of a run of the fault tests."""
    return None if "not faults" in config.option.markexpr else REPEAT


@cache
def _scope(path: Path) -> str:
    """Return what the tests of a file share: something expensive with other files, or the file alone."""
    fixture_match = DEAR.search(path.read_text())
    return SHARED_WITH.get(fixture_match[1], fixture_match[1]) if fixture_match else str(path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow ones."""
    items.sort(key=lambda item: (_scope(item.path) == str(item.path), item.get_closest_marker("services") is None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give what shares something to one worker process, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    class BySharing(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(SPREAD) else _scope(config.rootpath / nodeid.partition("::")[0])

    return BySharing(config, log)
