"""Public complaints about agent frameworks, in one run of `rollbus finetune` on a real broker: each costs its own part
alone, and the console says what it was.
"""

import asyncio
import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.streams.kafka.settings import StreamSettings
from tests.finetuning import art_adapter, art_builder, configuration, start_finetune
from tests.services.settings_file import write_settings
from tests.services.streams.fixtures import read_topic
from tests.web import QuietHandler, serve

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

WORKFLOW = Path(__file__).with_name("complaints_workflow.py")
WELL, ODD = ("branched", "plain"), ("nan", "none", "silent", "crash")
GENERATIONS, TRIES, CALLS = 2, 3, 3


@pytest.fixture
def model_url() -> Iterator[str]:
    """A model that says how often it was asked a question, and samples that number as its one token."""
    times, lock = Counter[str](), threading.Lock()

    class Model(QuietHandler):
        def do_POST(self) -> None:
            request = self.read_json()
            question = request["messages"][-1]["content"]
            with lock:
                times[question] += 1
                number, answer_id = times[question], f"answer-{times.total()}"
            token: dict[str, Any] = {"token": "t", "bytes": None, "logprob": -0.5, "top_logprobs": []}
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": str(number)},
                "logprobs": {"content": [token], "refusal": None},
                "token_ids": [number],
                "prompt_token_ids": [ord(letter) for letter in json.dumps(request["messages"])],
            }
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            head = {"id": answer_id, "object": "chat.completion", "created": 0, "model": f"{request['model']}@0"}
            self.answer({**head, "usage": usage, "choices": [choice]})

    with serve(Model) as address:
        yield f"{address}/v1"


def document(model_url: str) -> dict[str, Any]:
    plain = configuration(
        model_url,
        workflow="branching",
        evaluators={"odd": {"_type": "odd_judge"}, "broken": {"_type": "broken_judge"}},
        dataset="train.json",
        builder={**art_builder(GENERATIONS), "max_attempts": TRIES},
        adapter=art_adapter(9, "agent"),
        num_epochs=1,
    )
    memory = {"trainer": {"backend": {"type": "memory"}}}
    return {**plain, "rollbus": {"imports": [WORKFLOW.stem], "run_id": "odd", "data_dir": "state", "settings": memory}}


def test_what_users_complain_of_costs_its_own_example_alone_and_is_shown(
    kafka: str, clickhouse: tuple[str, int], model_url: str, tmp_path: Path
) -> None:
    write_settings(tmp_path, kafka, clickhouse, "complaints")
    shutil.copy(WORKFLOW, tmp_path)
    (tmp_path / "finetune.yml").write_text(yaml.safe_dump(document(model_url)))
    (tmp_path / "train.json").write_text(json.dumps([{"id": name, "question": name} for name in (*WELL, *ODD)]))
    code = start_finetune(tmp_path).wait(400)
    log = (tmp_path / "finetune.log").read_text()
    assert code == 0, log[-6000:]

    for name, judged in (("nan", "gave it nan"), ("none", "gave it None"), ("silent", "left it out")):
        for generation in range(GENERATIONS):
            line = f"example {name}, generation {generation} has no reward: the evaluator {judged}; it says no more"
            assert line in log, log
    place = rf"{re.escape(WORKFLOW.name)}, line \d+, in run\)"
    assert len(re.findall(rf"example crash failed: ValueError: no such order \(.*{place}", log)) == GENERATIONS
    assert re.search(r"evaluator 'broken' raised KeyError: 'no such column' \(.*, in evaluate\)", log), log
    (left_out,) = re.findall(r"left out of epoch 1: (.*)", log)
    assert sum(map(int, re.findall(r": (\d+)", left_out))) == GENERATIONS * (3 + TRIES), left_out

    (row,) = map(json.loads, (tmp_path / "output" / "training_metrics.jsonl").read_text().splitlines())
    assert (row["num_groups"], row["num_trajectories"], row["avg_reward"]) == (2, 2 * GENERATIONS, 0.5)
    host, port = clickhouse
    database = ClickHouseSettings(host=host, port=port, database="complaints")
    steps = "SELECT uniqExact(step), sum(trained) FROM steps FINAL WHERE namespace = 'odd.' AND state = 'completed'"
    assert [tuple(answer) for answer in ask(database, steps).rows] == [(1, 2 * GENERATIONS)], log

    run_settings = yaml.safe_load((tmp_path / "state" / "odd" / "settings.yaml").read_text())
    settings = StreamSettings(kafka=KafkaConnection(bootstrap_servers=kafka), namespace="odd.")
    records = asyncio.run(read_topic(settings, TRAJECTORIES.name, run_settings["worker"]["event_partitions"]))
    branched = [record for record in records if isinstance(record, Trajectory) and record.example_id in WELL]
    assert len(branched) == 2 * GENERATIONS
    for record in branched:
        spans = Counter(span.turn for history in record.histories for span in history.spans)
        assert spans == dict.fromkeys(range(CALLS), 1), "what was sampled once is trained once"
