"""A settings file, and commands given with it as a user gives them."""

import asyncio
import os
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from tests.console import ROLLBUS, without_settings

WIDE = {"COLUMNS": "200"}
USAGE = 2
"""How a command ends that was typed wrong, before it reads settings."""


def write_config(folder: Path, kafka: str, namespace: str, **sections: Any) -> Path:
    """Write a settings file; return its path."""
    path = folder / "rollbus.yaml"
    path.write_text(yaml.safe_dump({"namespace": namespace, "kafka": {"bootstrap_servers": kafka}, **sections}))
    return path


def say(config: Path, *words: str, expect: int = 0, **environment: str) -> str:
    """Give a command in this process; return what it prints after the line that names its settings."""
    result = CliRunner().invoke(rollbus, ["-c", str(config), *words], env=WIDE | environment)
    assert result.exit_code == expect, result.output
    return result.output if expect == USAGE else without_settings(result.output)


async def say_in_thread(config: Path, *words: str, expect: int = 0) -> str:
    """Give a command in this process, while its event loop goes on; return what `say` does."""
    return await asyncio.to_thread(say, config, *words, expect=expect)


async def say_installed(config: Path, command: str, *, expect: int = 0) -> str:
    """Run the installed command from the folder of its settings; return what `say` does."""
    process = await asyncio.create_subprocess_exec(
        *(ROLLBUS, "-c", str(config), *command.split()), cwd=config.parent, env={**os.environ, **WIDE},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == expect, output.decode()
    return without_settings(output.decode())
