"""The wheel installs into an empty environment, with the core alone, and imports without any extra."""

import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.installs import FOLDERS, ROOT, build_wheel, run
from tests.schemas.codecs import buildable

pytestmark = pytest.mark.slow
PACKED_SUFFIXES = {
    ".py",
    ".pyi",
    ".typed",
    ".avsc",
    ".sql",
    ".yaml",
    ".sha256",
    ".xml",
    ".html",
    ".js",
    ".css",
    ".svg",
    ".txt",
}
"""Endings of what the package needs at work."""
NOBODY = "127.0.0.1:1"
"""An address at which no broker listens."""
CORE_MODULES = "rollbus, rollbus.schemas.codec, rollbus.schemas.topics, rollbus.producers, rollbus.streams"
TRAVEL = (
    "from rollbus.schemas.codec import decode, encode; from rollbus.schemas.records.control import Tick; "
    "tick = Tick(number=1, stream_time_ms=2, wall_clock_ms=3, interval_ms=4); assert decode(encode(tick)) == tick"
)


@pytest.fixture(scope="module")
def empty_environment(uv: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the core and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(uv, "venv", "-q", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(uv, "pip", "install", "-q", "--python", python, wheel, cwd=folder)
    return python


def test_every_module_and_data_file_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in PACKED_SUFFIXES and "__pycache__" not in path.parts:
                inside = path.relative_to(ROOT) if folder == "rollbus" else "rollbus" / path.relative_to(ROOT)
                assert str(inside) in packed


@pytest.mark.skipif(not buildable(), reason="no C compiler or no Python.h here: the native codec is not built")
def test_the_installed_codec_is_the_native_one(empty_environment: Path, tmp_path: Path) -> None:
    assert codec_of(empty_environment, tmp_path) == "rollbus.schemas.avro.native"


def test_without_a_c_compiler_the_codec_is_fastavro(uv: Path, empty_environment: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    zipfile.ZipFile(build_wheel(uv, tmp_path, compiler="false")).extractall(folder)
    assert codec_of(empty_environment, tmp_path, beside=str(folder)) == "rollbus.schemas.avro.by_fastavro"


def test_the_pure_wheel_fits_every_machine_and_has_no_module_in_c(uv: Path, tmp_path: Path) -> None:
    wheel = build_wheel(uv, tmp_path, ROLLBUS_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".so", ".c"))]


def codec_of(python: Path, folder: Path, *, beside: str = "") -> str:
    """The module by which records are written and read, once one has travelled."""
    program = f"{TRAVEL}; from rollbus.schemas import codec; print(codec.avro.__name__)"
    return run(python, "-c", program, cwd=folder, PYTHONPATH=beside).stdout.strip()


def test_the_core_imports_without_any_extra(empty_environment: Path, tmp_path: Path) -> None:
    run(empty_environment, "-W", "error", "-c", f"import {CORE_MODULES}", cwd=tmp_path)


def test_folders_of_the_same_name_in_the_users_project_do_not_collide(empty_environment: Path, tmp_path: Path) -> None:
    for name in ("schemas", "trainer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'user'\n")
    program = f"import schemas, trainer, {CORE_MODULES}; assert schemas.OWNER == trainer.OWNER == 'user'"
    run(empty_environment, "-c", program, cwd=tmp_path)


def test_without_its_extra_the_command_line_says_what_to_install(empty_environment: Path, tmp_path: Path) -> None:
    result = run(empty_environment.with_name("rollbus"), cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert str(empty_environment) in result.stderr
    assert "'rollbus[cli]'" in result.stderr


@pytest.fixture(scope="module")
def environment_with(uv: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The `rollbus` of an environment with one extra, made when first asked for."""

    @cache
    def make(extra: str) -> Path:
        folder = tmp_path_factory.mktemp(extra)
        run(uv, "venv", "-q", "--python", sys.executable, folder / "venv", cwd=folder)
        run(uv, "pip", "install", "-q", "--python", folder / "venv" / "bin" / "python", f"{wheel}[{extra}]", cwd=folder)
        return folder / "venv" / "bin" / "rollbus"

    return make


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("streams", "topics check"),
        ("streams", "worker run"),
        ("streams", "dead-letters list"),
        ("trainer", "trainer status"),
        ("trainer", "trainer steps"),
        ("clickhouse", "sink status"),
    ],
)
def test_an_extra_brings_all_that_its_commands_need(
    environment_with: Callable[[str], Path], extra: str, command: str, tmp_path: Path
) -> None:
    result = run(
        environment_with(extra), *command.split(), cwd=tmp_path, check=False, ROLLBUS_KAFKA__BOOTSTRAP_SERVERS=NOBODY
    )
    assert result.returncode == 1
    assert "No module named" not in result.stderr
    assert NOBODY in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("extra", "command", "needed"),
    [
        ("streams", "sql run accounts", "clickhouse"),
        ("clickhouse", "worker run", "streams"),
        ("trainer", "demo", "local"),
    ],
)
def test_a_command_of_another_extra_says_which(
    environment_with: Callable[[str], Path], extra: str, command: str, needed: str, tmp_path: Path
) -> None:
    installed = environment_with(extra)
    result = run(installed, *command.split(), cwd=tmp_path, check=False)
    assert result.returncode == 1
    python = installed.with_name("python")
    assert f"run: uv pip install --python {python} 'rollbus[{needed}]'\n" in result.stderr, result.stderr
