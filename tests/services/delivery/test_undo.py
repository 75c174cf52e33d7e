"""The example that undoes a bad reward, on real Kafka and real ART: what is served is what was served before."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.steps import PolicyVersion, StepCompleted
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.kafka.manifest import find_manifest
from tests.services.art.fixtures import ArtServer
from tests.services.replay.live import records

pytestmark = pytest.mark.services

EXAMPLE = Path(__file__).parents[3] / "examples" / "undo" / "undo.py"


@pytest.mark.timeout(900)  # a stack with a model service of its own, and six training steps: 8 minutes on busy cores
async def test_a_bad_reward_is_undone_and_the_ledger_names_every_step(
    kafka: str, namespace: str, own_art_server: ArtServer, tmp_path: Path
) -> None:
    own_art_server.start()
    name = namespace.strip(".")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ROLLBUS_")}
    environment |= {"KAFKA": kafka, "ART_SERVER": own_art_server.url, "MODEL_URL": own_art_server.model_url,
                    "ROLLBUS_EXAMPLE_NAMESPACE": namespace, "ROLLBUS_EXAMPLE_REPLAY": name,
                    "ROLLBUS_EXAMPLE_RATE": "0.01", "OMP_NUM_THREADS": "1"}  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), env=environment, cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    output = ""
    async for line in process.stdout:
        output += line.decode()
        print(line.decode(), end="")  # shown where the test fails, however far it came
    await process.wait()
    assert process.returncode == 0, output
    base, bad, rolled_back, fixed = map(float, re.findall(r"^(\d\.\d{4})  ", output, flags=re.MULTILINE))
    assert rolled_back == base, output
    assert base not in (bad, fixed), output
    assert "another reward" in output

    stream = StreamSettings(kafka=KafkaConnection(bootstrap_servers=kafka), namespace=namespace, event_partitions=2)
    steps = [record for record in await records(stream, TRAINING_STEPS.name) if isinstance(record, StepCompleted)]
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [(step.base_version, step.policy_version) for step in steps][3][0] == 0
    assert len({step.batch_hash for step in steps}) == 6
    versions = [record for record in await records(stream, POLICY_VERSIONS.name) if isinstance(record, PolicyVersion)]
    undone = {version.version for version in versions if version.state == "rolled_back"}
    assert undone == {step.policy_version for step in steps[:3]}
    assert all("sign was wrong" in (version.reason or "") for version in versions if version.state == "rolled_back")
    manifest = await find_manifest(stream, name)
    assert [override.stage for override in manifest.overrides] == ["scoring"]
