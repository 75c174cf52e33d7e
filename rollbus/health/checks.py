"""This machine, its settings and its broker → findings for a person who sets rollbus up, or who has trouble with it.

Each check answers by itself: one that cannot be made says why, and the others go on.
"""

import asyncio
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

from rollbus.runtime.health.alarms.processes import CLOCK_MS, is_disk_low
from rollbus.runtime.machine import available_memory, disk_usage
from rollbus.schemas.errors import RollbusError, UnavailableError

if TYPE_CHECKING:
    from rollbus.settings import Settings

State = Literal["ok", "note", "problem"]
PACKAGES = ("rollbus", "aiokafka", "faust-streaming", "clickhouse-connect", "openpipe-art", "torch", "vllm")
"""Those whose releases change what a user sees."""
GPU_COMMAND = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
GPU_WAIT_S = 10
WHOLE_GB, WITH_ADAPTERS_GB = 10, 8
"""Measured with SmolLM2 in float32, every part of `rollbus start` included."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found."""

    subject: str
    state: State
    what: str
    remedy: str = ""
    """A command, or a setting; empty if nothing is to be done."""


Check = Callable[["Settings"], Iterable[CheckResult]]


def examine(settings: "Settings", stages: Sequence[Any]) -> Iterator[CheckResult]:
    """Make every check, the cheap ones first."""
    checks: tuple[tuple[str, Check], ...] = (
        ("versions", find_versions),
        ("disk", find_disk),
        ("memory", find_memory),
        ("GPU", find_gpus),
        ("services", find_services),
        ("principals", find_principals),
        ("topics", lambda settings: find_topics(settings, stages)),
        ("permissions", find_permissions),
    )
    for subject, check in checks:
        try:
            yield from check(settings)
        except UnavailableError as error:
            yield CheckResult(subject, "problem", str(error), "docs/runbook.md#broker")
            return  # the others ask the same broker
        except RollbusError as error:
            yield CheckResult(subject, "problem", str(error))
        except OSError as error:
            yield CheckResult(subject, "problem", f"cannot be checked: {error}")


def find_versions(settings: "Settings") -> Iterator[CheckResult]:
    """Name the releases that are installed."""
    installed = []
    for package in PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    yield CheckResult("versions", "ok", f"Python {platform.python_version()}, {', '.join(installed)}")
    try:
        from rollbus.schemas.avro import native  # noqa: F401
    except ImportError:
        yield CheckResult(
            "codec",
            "note",
            "records are read and written in Python, several times more slowly",
            "install a C compiler, then install rollbus again",
        )


def find_disk(settings: "Settings") -> Iterator[CheckResult]:
    """Say how much room there is where this machine writes."""
    folder = settings.stack.data_dir
    usage = disk_usage(folder)
    if usage is None:
        yield CheckResult(
            "disk",
            "note",
            f"the system does not say how much room there is for {folder}",
            "see yourself that its disk has some, or set `stack: data_dir:` to another disk",
        )
        return
    what = f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.0f} GiB free for {folder}"
    if is_disk_low(usage.free, usage.total):
        yield CheckResult("disk", "problem", what, "free some, or set `stack: data_dir:` to another disk")
    else:
        yield CheckResult("disk", "ok", what)


def find_memory(settings: "Settings", available: int | None = None) -> Iterator[CheckResult]:
    """Compare what is available with what all parts of `rollbus start` took, until the model service runs here.

    A kernel that has no memory left ends a process without a word. `available` is in bytes; None asks the system.
    """
    from rollbus.local.process.state import read

    available = available_memory() if available is None else available
    if available is None:
        yield CheckResult("memory", "note", "the system does not say how much is available")
        return
    what, lora = f"{available / 1e9:.1f} GB are available", settings.art_server.lora
    is_to_start = "art-server" in settings.local_services() and not read(
        settings.stack_settings().run_dir, "art-server"
    )
    needed, trained = (WITH_ADAPTERS_GB, "adapters") if lora else (WHOLE_GB, "the whole model")
    if is_to_start and available < needed * 1e9:
        what += f"; all parts of `rollbus start` took {needed} with SmolLM2, {trained} trained; a larger model more"
        remedy = (
            "close other programs" if lora else "set `art_server: {lora: {}}`, which takes 2 GB less, or close some"
        )
        yield CheckResult("memory", "note", what, remedy)
    else:
        yield CheckResult("memory", "ok", what)


def find_gpus(settings: "Settings") -> Iterator[CheckResult]:
    """Name the GPUs; without any, models are trained and served on the CPU."""
    try:
        answer = subprocess.run(
            GPU_COMMAND, capture_output=True, text=True, errors="replace", timeout=GPU_WAIT_S, check=True
        )
    except FileNotFoundError:
        yield CheckResult("GPU", "note", "none found: models are trained and served on the CPU")
        return
    except (subprocess.SubprocessError, OSError) as error:
        yield CheckResult(
            "GPU", "problem", f"the driver does not answer: {error}", "run `nvidia-smi`, and read docs/gpu.md"
        )
        return
    for line in answer.stdout.splitlines():
        yield CheckResult("GPU", "ok", line.strip())


def find_principals(settings: "Settings") -> Iterator[CheckResult]:
    """Yield whether canaries are judged by episodes whose producer can be known."""
    runs = [run.run_id for run in settings.runs if run.delivery is not None]
    if runs and not settings.signing.principals:
        what = (
            f"{', '.join(runs)} judges canaries, and no producer has a token: one that gives up what it does not like"
        )
        remedy = "`rollbus token create NAME --may record,feedback` (docs/security-producers.md)"
        yield CheckResult("principals", "note", f"{what} can stop a good one", remedy)


def find_services(settings: "Settings") -> Iterator[CheckResult]:
    """Look at the ports of the local stack, where it is used."""
    from rollbus.local import stack

    local = settings.stack_settings()
    rows = stack.status(local, stack.stack_services(local, art_command=["art-server"]))
    for row in rows:
        if row.state == "starting":
            yield CheckResult("services", "note", f"{row.name}: {row.state}; {row.detail}")
        elif row.state not in ("running", "stopped"):
            remedy = (
                "`rollbus up` starts it" if row.state == "crashed" else "end it, or set another port under `stack:`"
            )
            yield CheckResult("services", "problem", f"{row.name}: {row.state}; {row.detail}", remedy)
    running = [f"{row.name} at {row.address}" for row in rows if row.state == "running"]
    yield CheckResult("services", "ok", f"of the local stack run: {', '.join(running) or 'none'}")


def find_permissions(settings: "Settings") -> Iterator[CheckResult]:
    """Write nothing that stays, ask for lag, and compare this machine's clock with the broker's."""
    from rollbus.health.asking_kafka import ask_permissions

    answer = asyncio.run(ask_permissions(settings.kafka, settings.namespace))
    user = settings.kafka.username or "this machine"
    remedy = "`rollbus topics acls` prints what each role needs"
    for what, refusal in answer.refused.items():
        yield CheckResult("permissions", "problem", f"{user} cannot {what}: {refusal}", remedy)
    if not answer.refused:
        yield CheckResult(
            "permissions", "ok", f"{user} may write heartbeats, read steps, and see the lag of every group"
        )
    if answer.ahead_ms is not None:
        side = "ahead of" if answer.ahead_ms > 0 else "behind"
        what = f"this machine's is {abs(answer.ahead_ms) / 1000:.1f} s {side} the broker's"
        is_wrong = abs(answer.ahead_ms) > CLOCK_MS
        yield CheckResult("clock", "problem" if is_wrong else "ok", what, "set the clocks by NTP" if is_wrong else "")


def find_topics(settings: "Settings", stages: Sequence[Any]) -> Iterator[CheckResult]:
    """Compare the broker's topics with what the settings need."""
    from rollbus.streams.kafka.topics_on_broker import check_topics

    wrong = asyncio.run(check_topics(settings.stream_settings(), stages))
    for line in wrong:
        yield CheckResult("topics", "problem", line)
    if not wrong:
        yield CheckResult("topics", "ok", f"all exist at {settings.kafka.bootstrap_servers} with the right settings")
