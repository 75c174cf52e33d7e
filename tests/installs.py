"""rollbus as users have it: the development install, and the wheel in an environment outside the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("rollbus", "schemas", "runtime", "producers", "streams", "consumers", "trainer")


def run(*command: object, cwd: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that finds nothing of the checkout through its environment."""
    result = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=own_environment() | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not check or result.returncode == 0, f"{command} failed:\n{result.stdout}{result.stderr}"
    return result


def own_environment() -> dict[str, str]:
    """The environment of this process, less what points Python at the checkout or rollbus at services."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("ROLLBUS_")}


def hide_art_plugin(site: Path) -> Path:
    """Hide the toolkit's own ART plugin from what has this folder in PYTHONPATH: a user does not have it.

    It is installed here to be compared with, and the toolkit's commands import all of ART for it.
    """
    (about := site / "nvidia_nat_openpipe_art-1.9.0.dist-info").mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-nat-openpipe-art\nVersion: 1.9.0\n")
    return site


def build_wheel(uv: Path, folder: Path, *, compiler: str = "cc", **environment: str) -> Path:
    """Build the wheel from a copy, so that nothing left over in the checkout gets into it; do not optimize here."""
    source, out = folder / "source", folder / "out"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    variables: dict[str, Any] = {"CC": compiler, "CFLAGS": "-O0 -g0", **environment}
    run(uv, "build", "--wheel", "--python", sys.executable, "--out-dir", out, cwd=source, **variables)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def uv() -> Path:
    path = Path(sys.prefix) / "bin" / "uv"
    assert path.exists(), "uv is missing in the environment; run `make setup`"
    return path


@pytest.fixture(scope="session")
def wheel(uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(uv, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session", params=["development", "wheel"])
def install(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `rollbus` and `python` of an installation.

    The wheel's environment takes the other packages from this one, by a path that leads past the editable install.
    """
    if request.param == "development":
        return Path(sys.prefix) / "bin"
    uv, wheel = request.getfixturevalue("uv"), request.getfixturevalue("wheel")
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(uv, "venv", "-q", "--python", sys.executable, folder, cwd=folder.parent)
    run(uv, "pip", "install", "-q", "--no-deps", "--python", folder / "bin" / "python", wheel, cwd=folder.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"
