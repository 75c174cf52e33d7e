"""What `rollbus doctor` finds on this machine."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rollbus.health import asking_kafka, checks
from rollbus.health.asking_kafka import Permissions
from rollbus.health.checks import examine, find_disk, find_gpus, find_memory, find_permissions, find_principals
from rollbus.local.process.ports import find_free_port
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.config import DeliveryConfig, RunConfig
from rollbus.settings import Settings


def test_an_absent_broker_is_one_problem_beside_the_other_checks(tmp_path: Path) -> None:
    settings = Settings(kafka=KafkaConnection(bootstrap_servers=f"127.0.0.1:{find_free_port()}"))
    finding_by_subject = {finding.subject: finding for finding in examine(settings, [])}
    assert {subject for subject, finding in finding_by_subject.items() if finding.state == "problem"} == {"topics"}
    assert "cannot be reached" in finding_by_subject["topics"].what
    assert finding_by_subject["versions"].what.startswith("Python 3.")


def test_a_full_disk_is_a_problem_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Any = shutil._ntuple_diskusage(100 * 2**30, 99 * 2**30, 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (finding,) = find_disk(Settings())
    assert (finding.state, finding.what.partition(" of ")[0]) == ("problem", "1.0")
    assert "data_dir" in finding.remedy


def test_a_disk_or_memory_of_no_known_size_is_not_called_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
    monkeypatch.setattr(checks, "available_memory", lambda: None)
    for find in (find_disk, find_memory):
        (finding,) = find(Settings())
        assert (finding.state, finding.what.partition(" how much")[0]) == ("note", "the system does not say")


@pytest.mark.parametrize(
    ("gigabytes", "lora", "state"), [(9.9, None, "note"), (10, None, "ok"), (7.9, {}, "note"), (8, {}, "ok")]
)
def test_less_memory_than_the_model_was_seen_to_take_is_a_note(
    gigabytes: float, lora: dict[str, object] | None, state: str
) -> None:
    settings = Settings.model_validate({"runs": [RunConfig().model_dump()], "art_server": {"lora": lora}})
    (finding,) = find_memory(settings, available=int(gigabytes * 1e9))
    assert finding.state == state
    assert ("lora" in finding.remedy) == (state == "note" and lora is None)


def test_the_memory_check_passes_if_the_model_is_on_another_machine() -> None:
    run = RunConfig().model_dump()
    settings = Settings.model_validate(
        {"runs": [run], "trainer": {"backend": {"type": "art-server", "url": "http://elsewhere:7999"}}}
    )
    (finding,) = find_memory(settings, available=10**9)
    assert finding.state == "ok"


def test_a_canary_judged_only_without_tokens_is_a_notice() -> None:
    judged = Settings.model_validate(
        {"runs": [RunConfig(delivery=DeliveryConfig()).model_dump()], "trainer": {"serve": "after_evaluation"}}
    )
    (note,) = find_principals(judged)
    assert (note.state, note.what.partition(",")[0]) == ("note", "main judges canaries")
    assert "token create" in note.remedy
    keyed = judged.model_copy(update={"signing": judged.signing.model_copy(update={"principals": ("a-key",)})})
    assert not list(find_principals(keyed))
    assert not list(find_principals(Settings()))


def test_a_gpu_driver_that_writes_another_encoding_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'G\\351ant, 8192 MiB\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = find_gpus(Settings())
    assert (finding.state, finding.what) == ("ok", "G\ufffdant, 8192 MiB")


def test_no_answer_about_a_permission_is_not_called_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> Permissions:
        return Permissions({"read training steps": "no answer within 10 s"})

    monkeypatch.setattr(asking_kafka, "ask_permissions", ask)
    (finding,) = find_permissions(Settings())
    assert finding.what == "this machine cannot read training steps: no answer within 10 s"
