"""The door that users take: the console script, from a folder of their own, of either installation."""

import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from rollbus.cli.root import COMMANDS
from tests.cli.test_cli import every_command
from tests.installs import ROOT, own_environment, run

pytestmark = pytest.mark.slow
STATIC = ROOT / "rollbus" / "ui" / "static"


HELP_OF_ALL = """
from click.testing import CliRunner
from rollbus.cli.root import COMMANDS, rollbus
for noun in COMMANDS:
    print(CliRunner().invoke(rollbus, [noun, "--help"], prog_name="rollbus", catch_exceptions=False).output)
"""


def test_the_console_script_has_every_command(install: Path, tmp_path: Path) -> None:
    nouns = run(install / "rollbus", "--help", cwd=tmp_path).stdout
    assert nouns.startswith("Usage: rollbus ")
    help_text = run(install / "python", "-c", HELP_OF_ALL, cwd=tmp_path).stdout
    texts = re.split(r"^(?=Usage: )", help_text, flags=re.MULTILINE)
    for noun, text in zip(COMMANDS, texts[1:], strict=True):
        assert re.search(rf"^  {noun}\b", nouns, flags=re.MULTILINE), noun
        assert text.startswith(f"Usage: rollbus {noun} ")
        for verb in [command[1] for command in every_command() if command[0] == noun and len(command) == 2]:
            assert re.search(rf"^  {verb}\b", text, flags=re.MULTILINE), verb


def test_an_installation_uses_its_own_files(install: Path, tmp_path: Path) -> None:
    program = "import rollbus.schemas.codec as codec; print(codec.__file__, codec.avro.__file__)"
    python = install / "python"
    home = ROOT if python.parent.parent.parent == ROOT else install.parent
    for path in run(python, "-c", program, cwd=tmp_path).stdout.split():
        assert Path(path).is_relative_to(home)


def test_the_page_comes_with_every_file_it_asks_for(install: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [install / "rollbus", "ui", "--port", "0"],
        cwd=tmp_path,
        env=own_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as page:
        try:
            assert page.stdout is not None
            printed = page.stdout.readline().split()[0]
            browser = urllib.request.build_opener()
            index = browser.open(printed).read()
            address = printed.partition("/#")[0]
            assert index == (STATIC / "index.html").read_bytes()
            named = set(re.findall(r'="(/static/[^"]+)"', index.decode()))
            assert len(named) == 6
            for path in STATIC.rglob("*.*"):
                if path.is_file() and path.name != "index.html":
                    name = f"/static/{path.relative_to(STATIC).as_posix()}"
                    assert browser.open(address + name).read() == path.read_bytes(), name
                    named.discard(name)
            assert not named
        finally:
            page.send_signal(signal.SIGINT)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return bytes(answer.read())


@pytest.mark.parametrize("command", ["sql list", "topics acls", "topics graph"])
def test_a_command_finds_the_data_of_its_package(install: Path, command: str, tmp_path: Path) -> None:
    assert run(install / "rollbus", *command.split(), cwd=tmp_path).stdout


@pytest.mark.parametrize("install", ["wheel"], indirect=True)
def test_kafkas_jars_come_without_a_checkout_and_once(install: Path, tmp_path: Path) -> None:
    """Maven takes them from its own repository on this machine, where they are since the set-up."""
    program = "from rollbus.local.kafka.jars import find_jars; print(find_jars(report=print))"
    first, second = (
        run(install / "python", "-c", program, cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)).stdout.split("\n")[:-1]
        for _ in range(2)
    )
    assert first[0].startswith("fetching Kafka's jars with Maven")
    assert [first[-1]] == second
    assert Path(second[0]).parent == tmp_path / "rollbus"
    assert {path.suffix for path in Path(second[0]).iterdir()} == {".jar"}
