"""Warm-start settings → the folder of a base model, from the cache or made now in a process of its own.

The folder's name is a hash of the settings and of the code that makes the model, so either change makes a new one; it
is written all or nothing. The process of its own keeps torch out of whoever asks.
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
    """What decides the weights."""

    seed: int = 0
    steps: int = 400
    games_per_step: int = 12
    """About 35 boards."""
    learning_rate: float = 3e-3
    """Falls linearly to zero."""
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 256
    vocabulary: int = 384
    max_tokens: int = 128
    """Longest prompt and reply together; a turn takes 41."""


def ensure(settings: WarmStartSettings, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The folder of the base model; trained first (about 20 s on one core) unless it is there."""
    target = folder(settings, cache_dir)
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
            done, _, total = line.strip().partition(" of ")
            if progress and done.isdigit() and total.isdigit():
                progress(int(done), int(total))
    if not target.is_dir():
        raise UnavailableError(
            f"the warm start ended with code {process.returncode} and left no model at {target}; see {log}"
        )
    log.unlink()
    return target


def folder(settings: WarmStartSettings, cache_dir: Path) -> Path:
    """Where the model of these settings, made by this code, lies or will lie."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return cache_dir / f"tictactoe-{digest.hexdigest()[:12]}"


def _sources() -> list[Path]:
    """The code that decides the weights."""
    from rollbus import trainer  # the folder only; nothing below it is imported

    demo = Path(__file__).parent
    service = Path(trainer.__path__[0]) / "service"
    names = ("game.py", "opponents.py", "prompt.py", "warm_start.py")
    return [*(demo / name for name in names), service / "model.py", service / "tokenizer.py"]
