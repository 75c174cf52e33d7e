"""Warm-start settings → the folder of a base model, from the cache or trained now in its own process.

The folder's name is a hash of the settings and of the code that makes the model, so a change of either makes a new
one. It is written whole or not at all. Its own process keeps torch out of the caller.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rollbus.schemas.errors import UnavailableError

Progress = Callable[[int, int], None]
"""Steps done, steps in all."""


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """The settings that decide the weights."""

    seed: int = 0
    steps: int = 400
    games_per_step: int = 12
    """About 35 boards."""
    sees_lines: float = 0.25
    """Share of the moves at which the player it copies looks for a line to complete or to block; else any free cell."""
    learning_rate: float = 3e-3
    """Falls linearly to zero."""
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 256
    vocabulary: int = 384
    max_tokens: int = 128
    """Longest prompt and reply together; a turn takes up to 49."""


def ensure_base_model(settings: WarmStartSettings, cache_dir: Path, progress: Progress | None = None) -> Path:
    """Return the folder of the base model; trains it first (about 20 s on one core) if it does not exist.

    `cache_dir` holds the models of all settings. Raises UnavailableError if the training fails.
    """
    target = base_model_folder(settings, cache_dir)
    if target.is_dir():
        return target
    command = [sys.executable, "-m", "rollbus.demo.warm_start", str(target), json.dumps(asdict(settings))]
    log = target.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            steps_done, _, steps_total = line.strip().partition(" of ")
            if progress and steps_done.isdigit() and steps_total.isdigit():
                progress(int(steps_done), int(steps_total))
    if not target.is_dir():
        raise UnavailableError(
            f"the warm start ended with code {process.returncode} and left no model at {target}; see {log}"
        )
    log.unlink()
    return target


def base_model_folder(settings: WarmStartSettings, cache_dir: Path) -> Path:
    """Return the folder for the model of these settings and this code."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for source in _find_sources():
        digest.update(source.read_bytes())
    return cache_dir / f"tictactoe-{digest.hexdigest()[:12]}"


def _find_sources() -> list[Path]:
    """Return the files of code that decide the weights."""
    from rollbus import trainer  # the folder only; nothing below it is imported

    demo = Path(__file__).parent
    art_server = Path(trainer.__path__[0]) / "art_server"
    names = ("game/game.py", "game/prompt.py", "warm_start.py")
    return [
        *(demo / name for name in names),
        *(art_server / "model" / name for name in ("config.py", "network.py", "model.py")),
        art_server / "endpoint" / "tokenizer.py",
    ]
