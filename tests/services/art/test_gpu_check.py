"""`make gpu-check` where there is no GPU: what a CPU can run is run, and what it cannot is named with its reason."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.check import check_engine, check_vllm, exit_code, run_course, write_report
from benchmarks.gpu.engines import engines
from benchmarks.gpu.probes import Course, Figures, NotApplicableError, ProbeFailedError
from benchmarks.gpu.report import Finding, to_markdown

ROOT = Path(__file__).parents[3]
CPU = {engine.name: engine for engine in engines("cpu")}


async def passes(course: Course) -> Figures:
    return {"seconds": 1.5}


async def fails(course: Course) -> Figures:
    raise ProbeFailedError("log-probs differ by 0.3")


async def does_not_apply(course: Course) -> Figures:
    raise NotApplicableError("the newest version only")


def fake_course() -> Course:
    return Course(CPU["ours, float32"], None, "cpu", "http://127.0.0.1:1/v1")  # type: ignore[arg-type]


def test_a_failed_probe_is_reported_and_those_that_build_on_it_are_skipped() -> None:
    findings = list(run_course(fake_course(), (passes, does_not_apply, fails, passes)))
    assert [finding.state for finding in findings] == ["passed", "skipped", "failed", "skipped"]
    assert findings[1].reason == "the newest version only"
    assert "log-probs differ by 0.3" in findings[2].reason
    assert findings[3].reason == "fails failed before it"
    assert exit_code(findings) == 1


def test_a_check_that_ran_nothing_does_not_pass() -> None:
    skipped = Finding("ours", "all", "skipped", reason="no GPU")
    assert exit_code([skipped]) == 2
    assert exit_code([skipped, Finding("ours", "start", "passed")]) == 0


@pytest.mark.parametrize("name", ["ours, bfloat16", "ART's own, LoRA"])
def test_an_engine_that_cannot_run_here_is_skipped_with_its_reason(name: str, tmp_path: Path) -> None:
    engine = {engine.name: engine for engine in engines("cuda")}[name]
    (finding,) = check_engine(engine, tmp_path / "model", tmp_path / "folder", "cuda", 128)
    assert finding.state == "skipped"
    assert "sees no CUDA device" in finding.reason


def test_an_own_vllm_is_skipped_on_a_cpu(tmp_path: Path) -> None:
    (finding,) = check_vllm(CPU["ours, float32"], tmp_path, tmp_path, "cpu", 128)
    assert finding.reason == "it needs a GPU, and this check runs on cpu"


def test_the_report_shows_the_machine_and_the_reason_of_each_skip(tmp_path: Path) -> None:
    findings = [
        Finding("ours", "update", "passed", {"seconds": 2.0}),
        Finding("vLLM", "all", "skipped", reason="a | b"),
    ]
    page = to_markdown({"GPU": "H100"}, findings)
    assert "| GPU | H100 |" in page
    assert "| ours | update | passed | seconds 2 |" in page
    assert r"| vLLM | all | skipped | a \| b |" in page
    write_report(tmp_path, {"GPU": "H100"}, findings)
    assert json.loads((tmp_path / "report.json").read_text())["findings"][0]["figures"] == {"seconds": 2.0}


@pytest.mark.services
@pytest.mark.faults
def test_every_probe_of_our_engine_runs_on_a_cpu(art_base_model: Path, tmp_path: Path) -> None:
    engine = CPU["ours, bfloat16, LoRA"]
    findings = list(check_engine(engine, art_base_model, tmp_path / "run", "cpu", 128))
    assert [(finding.probe, finding.state) for finding in findings] == [
        (probe, "passed") for probe in ("start", "sample", "update", "update_again", "roll_back", "kill_and_resume")
    ], findings
    figures = {finding.probe: finding.figures for finding in findings}
    assert 0 < figures["update_again"]["logprob_difference_max"] < engine.logprob_bound
    assert figures["sample"]["tokens_per_s"] > 0
    assert figures["update"]["peak_gb"] > 0
