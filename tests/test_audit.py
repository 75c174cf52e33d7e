"""`make audit`: a bill of what is locked, and what a service of vulnerabilities says about it."""

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "audit"
STAND_IN = """#!/bin/sh
[ "$1" = export ] || { echo "h11 has PYSEC-2026-1"; exit 1; }
for last; do :; done
echo '{"components": []}' > "$last"
"""
"""For uv with a service that knows a vulnerability: the real one also asks the registry about each package."""


def audit(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment |= {"BILL": str(folder / "bill.json"), "PATH": "/usr/bin:/bin"}
    return subprocess.run([str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False)


def test_a_vulnerability_fails_the_audit(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(STAND_IN)
    uv.chmod(0o755)
    completed = audit(tmp_path, UV=str(uv))
    assert completed.returncode == 1
    assert "PYSEC-2026-1" in completed.stdout


def test_an_accepted_vulnerability_has_a_reason_and_is_left_out(tmp_path: Path) -> None:
    uv, accepted = tmp_path / "uv", tmp_path / "accepted"
    uv.write_text(STAND_IN.replace("exit 1", 'echo "asked: $*"; exit 0'))
    uv.chmod(0o755)
    accepted.write_text("# why\n\nPYSEC-2026-1 it is never called\n")
    run = audit(tmp_path, "--strict", UV=str(uv), ACCEPTED=str(accepted))
    assert run.returncode == 0
    assert "--ignore PYSEC-2026-1" in run.stdout
    assert "accepted: PYSEC-2026-1: it is never called" in run.stdout
    accepted.write_text("PYSEC-2026-1\n")
    run = audit(tmp_path, UV=str(uv), ACCEPTED=str(accepted))
    assert (run.returncode, "has no reason" in run.stderr) == (2, True)


def test_a_release_is_not_made_where_nothing_was_checked(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text(STAND_IN.replace('echo "h11 has PYSEC-2026-1"; exit 1', 'echo "error: Request failed"; exit 2'))
    uv.chmod(0o755)
    assert audit(tmp_path, UV=str(uv)).returncode == 0
    assert audit(tmp_path, "--strict", UV=str(uv)).returncode == 2
    assert "scripts/audit --strict" in (SCRIPT.parent / "dist").read_text()


@pytest.mark.slow
def test_an_unreachable_audit_service_is_reported_and_the_bill_is_written(tmp_path: Path) -> None:
    completed = audit(tmp_path, "--service-url", "http://127.0.0.1:9/")
    assert completed.returncode == 0
    assert "nothing was checked" in completed.stderr
    bill = json.loads((tmp_path / "bill.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {component["purl"] for component in bill["components"] if "purl" in component}
    assert f"pkg:pypi/h11@{version('h11')}" in listed
    hashes = {component["name"]: component.get("hashes") for component in bill["components"]}
    assert hashes["kafka-clients-4.1.0.jar"][0]["alg"] == "SHA-256"
    assert {purl.split("@")[0] for purl in listed} >= {"pkg:pypi/torch", "pkg:pypi/chdb", "pkg:pypi/aiokafka"}
