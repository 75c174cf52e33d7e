"""A bad reward trains three steps; then it is undone: roll back, replay with the fixed reward, train from the replay.

    rollbus up && python examples/undo/undo.py

Every step is a command of `rollbus`, printed before it runs, and what is served is measured after each.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent import measure

FOLDER = Path(__file__).parent
ROLLBUS = str(Path(sys.executable).with_name("rollbus"))
STEPS = 3
PATIENCE_S = 300.0
"""Three steps take half a minute on an idle machine."""
LOGS = Path(".rollbus/undo-example")
ENVIRONMENT = {**os.environ, "ROLLBUS_CONFIG": str(FOLDER / "rollbus.yaml")}
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
NAMESPACE = os.environ.get("ROLLBUS_EXAMPLE_NAMESPACE", "undo.")
MODEL_URL = os.environ.get("MODEL_URL", "http://127.0.0.1:8000/v1")
REPLAY = os.environ.get("ROLLBUS_EXAMPLE_REPLAY", "fixed")


def main() -> None:
    """Tell the story, and the ledger's version of it."""
    rollbus("topics", "create")
    scores_by_moment = [("the base model", held_out())]
    with running("worker", "run"):
        call(sys.executable, str(FOLDER / "agent.py"), "play", MODEL_URL, KAFKA, NAMESPACE)
        with running("trainer", "run"):
            wait_for_steps(STEPS)
    scores_by_moment.append((f"after {STEPS} steps on the bad reward", held_out()))
    rollbus("policy", "rollback", "0", "--reason", "the reward's sign was wrong")
    scores_by_moment.append(("rolled back", held_out()))
    rollbus("replay", "--from", "earliest", "--reward", str(FOLDER / "fixed.yaml"), "--as", REPLAY, "--diff", "live")
    rollbus("trainer", "run", "--from-namespace", REPLAY)
    scores_by_moment.append(("trained again, on the fixed reward", held_out()))
    rollbus("trainer", "steps")
    rollbus("policy", "list")
    for moment, score in scores_by_moment:
        print(f"{score:.4f}  {moment}")


def held_out() -> float:
    """Measure what is served now."""
    return asyncio.run(measure(MODEL_URL))


def rollbus(*arguments: str) -> str:
    """Run a command of rollbus as a user would, and print it with its output."""
    print(f"$ rollbus {' '.join(arguments)}", flush=True)
    output = call(ROLLBUS, *arguments)
    print(output, flush=True)
    return output


def call(*command: str) -> str:
    """Run a command to its end; raises SystemExit with what it said where it fails."""
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{process.stdout}{process.stderr}")
    return process.stdout


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """Keep a part of rollbus running; what it says goes to a file."""
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{arguments[0]}.log"
    print(f"$ rollbus {' '.join(arguments)} &   # {path}", flush=True)
    with path.open("w") as log:
        process = subprocess.Popen([ROLLBUS, *arguments], env=ENVIRONMENT, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_steps(count: int) -> None:
    """Wait until the trainer has closed so many steps."""
    deadline = time.monotonic() + PATIENCE_S
    while call(ROLLBUS, "trainer", "steps").count("completed") < count:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"the trainer closed no {count} steps within {PATIENCE_S:.0f} s: see what {LOGS}/*.log say"
            )
        time.sleep(2)


if __name__ == "__main__":
    main()
