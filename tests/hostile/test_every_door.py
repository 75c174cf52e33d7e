"""A token of its own at each door of a running stack: the log and SQL name its principal, whatever the sender says.

Kafka asks for a password over TLS, and every program is the user of its role; they run as their users start them.
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.ports import find_free_port, is_free
from rollbus.producers import Recorder, init
from rollbus.producers.imports.formats.episode_events import episode_id_of
from rollbus.runtime.credentials import OWNER_KEY, make_secrets
from rollbus.runtime.principals import issue
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.ui.door import page_token
from tests.agents.model_server import Faults, ModelServer
from tests.console import ROLLBUS
from tests.hostile.doors import TOKEN, command
from tests.producers.imports.formats.reading import request_of
from tests.producers.imports.formats.test_otlp import AGENT
from tests.services.art.fixtures import ArtServer, Launcher
from tests.services.endpoint.guarded_endpoint import Guarded, running_endpoint
from tests.services.kafka.acl_broker import Server, acl_server, connection, kafka_section, settings_of
from tests.services.streams.fixtures import read_topic
from tests.waiting import wait_until

pytestmark = pytest.mark.services

NAMESPACE = "doors."
CHAT: dict[str, Any] = {"model": "agent", "messages": [{"role": "user", "content": "choose"}], "max_tokens": 1}


@dataclass(frozen=True, slots=True)
class Stack:
    """Where each door is, and what the log and the tables are asked with."""

    server: Server
    clickhouse: ClickHouseSettings
    secrets: Path
    ports: Mapping[str, int]

    def token(self, name: str) -> str:
        return issue(self.secrets, name, ("record", "feedback"), datetime.now(UTC))

    def recorder(self, token: str) -> Recorder:
        """The SDK of a program that is Kafka's user `producer`."""
        return init(
            security=connection(self.server, "producer"), namespace=NAMESPACE, producer="the-owner", token=token
        )

    def post(self, door: str, path: str, token: str, body: Any) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        answer = httpx.post(f"http://127.0.0.1:{self.ports[door]}{path}", json=body, headers=headers, timeout=120)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def log(self) -> list[Any]:
        """The records of `trajectories`."""
        return asyncio.run(read_topic(settings_of(self.server, NAMESPACE, "admin"), TRAJECTORIES.name))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in ask(self.clickhouse, sql).rows]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, art_launcher: Launcher, art_base_model: Path) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("every-door")
    data_dir = folder / "data"
    secrets = data_dir / "secrets"
    make_secrets(secrets, (OWNER_KEY, "principals_key"))
    with ExitStack() as exits:
        server = exits.enter_context(acl_server(folder))
        endpoint = exits.enter_context(running_endpoint(Guarded(find_free_port(), folder / "clickhouse")))
        model = ModelServer(Faults(None))
        exits.callback(model.close)
        art = ArtServer(art_launcher, art_base_model, folder / "art", options={"token": TOKEN}, data_dir=data_dir)
        art.start()
        exits.callback(art.stop)
        doors = {name: find_free_port() for name in ("proxy", "ingest", "grpc")}
        variables = {"ROLLBUS_SECRETS": str(secrets), "ROLLBUS_CLICKHOUSE__PASSWORD": endpoint.password}

        def run(role: str, *arguments: str) -> str:
            return exits.enter_context(command(write_settings(folder, server, endpoint, role), *arguments, **variables))

        subprocess.run(
            [ROLLBUS, "topics", "create", "--acls"],
            cwd=write_settings(folder, server, endpoint, "admin"),
            env=os.environ | variables,
            check=True,
        )
        run("worker", "worker", "run")
        run("sink", "sink", "run")
        run("proxy", "proxy", "run", "--upstream", model.url, "--port", str(doors["proxy"]))
        ports = ("--port", str(doors["ingest"]), "--grpc-port", str(doors["grpc"]), "--settle", "0.2")
        run("proxy", "ingest", "serve", *ports)
        doors["page"] = int(re.search(r":(\d+)/", run("operator", "ui", "--port", "0"))[1])  # type: ignore[index]
        while any(is_free(port) for port in doors.values()):
            time.sleep(0.1)
        clickhouse = ClickHouseSettings(port=endpoint.port, password=endpoint.password)  # type: ignore[arg-type]
        yield Stack(server, clickhouse, secrets, doors | {"model": art.model_port, "control": art.control_port})


def write_settings(folder: Path, server: Server, endpoint: Guarded, role: str) -> Path:
    """Write a role's settings file; return its folder."""
    content = {
        "namespace": NAMESPACE,
        "kafka": kafka_section(server, role),
        "clickhouse": {"port": endpoint.port},
        "worker": {"event_partitions": 2, "tick_interval_ms": 200},
        "sink": {"linger_ms": 100},
        "runs": [{"run_id": "main"}],
    }
    place = folder / role
    place.mkdir(exist_ok=True)
    (place / "rollbus.yaml").write_text(yaml.safe_dump(content))
    return place


def record(stack: Stack, token: str) -> str:
    """Record an episode with the SDK."""
    recorder = stack.recorder(token)
    with recorder.episode(task="play") as episode:
        episode.reward(1.0)
    assert recorder.close()
    return episode.id


def record_at_model(stack: Stack, token: str) -> str:
    """Ask art-server's endpoint with the token as the key, and let the SDK record it."""
    recorder = stack.recorder(token)
    client = recorder.wrap(OpenAI(base_url=f"http://127.0.0.1:{stack.ports['model']}/v1", api_key=token))
    with recorder.episode(task="play") as episode:
        client.chat.completions.create(**CHAT)
        episode.reward(1.0)
    assert recorder.close()
    return episode.id


def record_at_proxy(stack: Stack, token: str) -> str:
    opened = stack.post("proxy", "/rollbus/episodes", token, {"task": "play"})["id"]
    stack.post("proxy", f"/rollbus/episodes/{opened}/v1/chat/completions", token, CHAT)
    stack.post("proxy", f"/rollbus/episodes/{opened}/reward", token, {"value": 1.0})
    stack.post("proxy", f"/rollbus/episodes/{opened}/end", token, {})
    return str(opened)


def record_at_ingest(stack: Stack, token: str) -> str:
    stack.post("ingest", "/v1/traces", token, request_of([with_evaluation(AGENT[0]), *AGENT[1:]]))
    return episode_id_of("otlp", AGENT[0]["traceId"])


def with_evaluation(span: Mapping[str, Any]) -> dict[str, Any]:
    """A span in which an evaluation was written down."""
    attributes = [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "good"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1.0}},
    ]
    return {**span, "events": [{"name": "gen_ai.evaluation.result", "attributes": attributes}]}


def record_at_grpc(stack: Stack, token: str) -> str:
    exporter = OTLPSpanExporter(
        f"127.0.0.1:{stack.ports['grpc']}", insecure=True, headers=(("authorization", f"Bearer {token}"),)
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    values: dict[str, Any] = {"gen_ai.evaluation.name": "good", "gen_ai.evaluation.score.value": 1.0}
    with provider.get_tracer("agent").start_as_current_span("invoke_agent shop") as span:
        span.add_event("gen_ai.evaluation.result", values)
    provider.shutdown()
    return episode_id_of("otlp", f"{span.get_span_context().trace_id:032x}")


RECORDING = {
    "sdk": record,
    "model": record_at_model,
    "proxy": record_at_proxy,
    "ingest": record_at_ingest,
    "ingest-grpc": record_at_grpc,
}


@pytest.mark.parametrize("door", RECORDING)
def test_a_record_carries_the_principal_of_its_door_into_log_and_sql(stack: Stack, door: str) -> None:
    name = f"agent-{door}"
    episode_id = RECORDING[door](stack, stack.token(name))
    check_log(stack, episode_id, recorded_by=name, reported_by={name})
    check_rows(stack, episode_id, recorded_by=name, reported_by={name})


def report(stack: Stack, token: str, episode_id: str) -> None:
    recorder = stack.recorder(token)
    recorder.feedback(episode=episode_id, reward=-1.0, name="thumbs", key="k")
    assert recorder.close()


def report_at_proxy(stack: Stack, token: str, episode_id: str) -> None:
    stack.post("proxy", "/rollbus/feedback", token, {"episode": episode_id, "value": -1.0, "name": "thumbs"})


def report_at_page(stack: Stack, token: str, episode_id: str) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{stack.ports['page']}", timeout=120) as browser:
        for path, bearer, body in (
            ("/api/session", token, {}),
            ("/api/verdicts", page_token(TOKEN), {"episode_id": episode_id, "value": -1.0, "name": "thumbs"}),
        ):
            answer = browser.post(path, json=body, headers={"authorization": f"Bearer {bearer}"})
            assert answer.is_success, answer.text


REPORTING: dict[str, Callable[[Stack, str, str], None]] = {
    "sdk": report,
    "proxy": report_at_proxy,
    "page": report_at_page,
}


@pytest.mark.parametrize("door", REPORTING)
def test_a_report_has_its_principal_in_the_log_and_in_sql(stack: Stack, door: str) -> None:
    agent, reporter = f"watched-{door}", f"reporter-{door}"
    episode_id = record(stack, stack.token(agent))
    REPORTING[door](stack, stack.token(reporter), episode_id)
    check_log(stack, episode_id, recorded_by=agent, reported_by={agent, reporter})
    check_rows(stack, episode_id, recorded_by=agent, reported_by={agent, reporter})


def test_the_owners_feedback_on_the_page_is_the_operators(stack: Stack) -> None:
    episode_id = record(stack, stack.token("watched-by-owner"))
    report_at_page(stack, TOKEN, episode_id)
    check_log(stack, episode_id, recorded_by="watched-by-owner", reported_by={"watched-by-owner", "operator"})


def test_only_the_owners_key_trains(stack: Stack) -> None:
    """A token that an agent holds does not open the door of the learner."""
    url = f"http://127.0.0.1:{stack.ports['control']}/rollbus/v1/versions"
    for token, status in ((stack.token("agent-that-would-train"), 403), ("none", 401), (TOKEN, 200)):
        assert httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=120).status_code == status


def check_log(stack: Stack, episode_id: str, *, recorded_by: str, reported_by: set[str]) -> None:
    """Wait until the log has the episode with the rewards of these principals, and with no other."""

    def principals() -> tuple[set[str], set[str]]:
        records = [record for record in stack.log() if getattr(record, "episode_id", None) == episode_id]
        principals_of_trajectories = {record.principal for record in records if isinstance(record, Trajectory)}
        with_rewards = [record for record in records if isinstance(record, Trajectory | RewardRevised)]
        return principals_of_trajectories, {reward.principal for record in with_rewards for reward in record.rewards}

    wait_until(lambda: principals() == ({recorded_by}, reported_by), f"the log names others: {principals()}")


def check_rows(stack: Stack, episode_id: str, *, recorded_by: str, reported_by: set[str]) -> None:
    statement = f"SELECT DISTINCT principal FROM trajectories WHERE episode_id = '{episode_id}'"
    reported = (
        f"SELECT DISTINCT principal FROM trajectory_rewards WHERE trajectory_id IN "
        f"(SELECT trajectory_id FROM trajectories WHERE episode_id = '{episode_id}')"
    )
    wait_until(lambda: {name for (name,) in stack.rows(reported)} == reported_by, "the tables name other reporters")
    assert stack.rows(statement) == [(recorded_by,)]
