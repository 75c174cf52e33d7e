"""`rollbus start` in an empty folder: it starts what is missing, explains the first episodes, and sets what follows."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from rollbus.local.process.ports import find_free_port
from tests.console import ROLLBUS
from tests.installs import run

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

AGENT = """
    import rollbus

    rb = rollbus.init(bootstrap_servers="{kafka}", producer="shop-agent")
    for number in range(6):
        with rb.episode(task="refund", example_id=f"ticket-{{number}}") as episode:
            turn = {{"prompt_token_ids": [1, 2], "token_ids": [7], "logprobs": [-0.1]}}
            episode.turn(messages=[{{"role": "user", "content": "…"}}], answer="paid", model="agent@0", **turn)
        rb.feedback(episode.id, reward=float(number % 2), name="thumbs", key=f"user-{{number}}")
    assert rb.close(30)
"""
SETTINGS = """\
# Our shop.
stack: {{kafka_port: {port}}}
trainer: {{backend: {{type: memory}}}}   # no model to train
scoring: {{rewards: [{{type: feedback, name: correct}}]}}
"""


def test_a_new_project_runs_and_its_settings_follow_from_its_traffic(tmp_path: Path) -> None:
    port = find_free_port()
    (tmp_path / "rollbus.yaml").write_text(SETTINGS.format(port=port))
    try:
        completed = run(ROLLBUS, "start", "--yes", cwd=tmp_path)
        assert "no episode has begun yet" in completed.stdout
        agent = textwrap.dedent(AGENT.format(kafka=f"127.0.0.1:{port}"))
        run(sys.executable, "-c", agent, cwd=tmp_path)
        completed = run(ROLLBUS, "start", "--yes", "--wait", "60", cwd=tmp_path)
        assert "missing" not in completed.stdout
        assert "6 reports are named 'thumbs', which no component reads (read: correct)" in " ".join(
            completed.stdout.split()
        )
        text = (tmp_path / "rollbus.yaml").read_text()
        assert "# Our shop." in text
        rewards = yaml.safe_load(text)["scoring"]["rewards"]
        assert [reward["name"] for reward in rewards] == ["correct", "thumbs"]
        status = json.loads(run(ROLLBUS, "status", "--json", cwd=tmp_path, check=False).stdout)
        assert {row["kind"] for row in status["health"]["processes"]} == {"worker", "sink", "trainer"}
    finally:
        run(ROLLBUS, "down", cwd=tmp_path)
