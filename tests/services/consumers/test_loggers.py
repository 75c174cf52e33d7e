"""Loggers against the trackers' own libraries, offline or with a scripted server, and a log that feeds them."""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.loggers.follow_kafka import follow
from rollbus.consumers.loggers.protocol import RunLogger
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.steps import Evaluation, StepCompleted
from tests.console import ROLLBUS
from tests.consumers.memory_logger import MemoryLogger
from tests.consumers.story import story
from tests.services.clickhouse.sink_fixtures import create_topics, encode_records, send, sink_settings
from tests.services.commands import write_config
from tests.waiting import until, wait_until
from tests.web import QuietHandler, serve

pytestmark = pytest.mark.services

settings = sink_settings
(STEP,) = [record for _, _, record in story() if isinstance(record, StepCompleted)]
(EVALUATION,) = [record for _, _, record in story() if isinstance(record, Evaluation)]


def tracker_logger(name: str) -> Any:
    """The class; its tracker takes seconds to import, which only the process that runs these tests spends."""
    return getattr(import_module(f"rollbus.consumers.loggers.{name}_logger"), f"{name.capitalize()}Logger")


def log_everything_twice(logger: RunLogger) -> None:
    for _ in range(2):
        logger.log_step(STEP)
        logger.log_evaluation(EVALUATION)
    logger.close()


def test_mlflow_keeps_each_point_once_under_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}"
    for _ in range(2):
        logger = tracker_logger("mlflow")(uri, namespace="t.")
        logger.log_evaluation(replace(EVALUATION, name="held-out (pass@1)"))
        log_everything_twice(logger)
    client = import_module("mlflow").MlflowClient(uri)
    experiment = client.get_experiment_by_name("rollbus")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "t.main"
    assert run.data.metrics["train/loss"] == 0.25
    assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "train/entropy")] == [
        (1, 1.5)
    ]
    assert run.data.metrics["evaluation/held-out/win"] == 0.55
    name = "evaluation/held-out :28:pass:40:1:29:/win"
    assert run.data.metrics[name] == 0.55, "a name that MLflow does not take as it is"


NAMES = ("share <0", "share >0", "a//b", "c/", "..", "", "x" * 300, "x" * 299 + "y", "a:3c:", "a<", "a%2Fb", "ü")


def test_mlflow_takes_points_of_any_name_and_keeps_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = tracker_logger("mlflow")(f"file://{tmp_path}", namespace="t.")
    logger.log_evaluation(replace(EVALUATION, metrics={name: float(place) for place, name in enumerate(NAMES)}))
    logger.log_evaluation(replace(EVALUATION, name="held-out/a", metrics={"b": 0.5}))
    logger.log_evaluation(replace(EVALUATION, name="held-out", metrics={"a/b": 0.25}))
    client = import_module("mlflow").MlflowClient(f"file://{tmp_path}")
    (run,) = client.search_runs([client.get_experiment_by_name("rollbus").experiment_id])
    values = [value for name, value in run.data.metrics.items() if not name.endswith("episodes")]
    assert sorted(values) == sorted([*map(float, range(len(NAMES))), 0.5, 0.25])


def test_mlflow_shows_the_newest_of_repeated_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = tracker_logger("mlflow")(f"file://{tmp_path}", namespace="t.")
    for value, after_ms in ((0.1, 0), (0.9, 2), (0.2, 1)):
        at_ms = EVALUATION.evaluated_at_ms + after_ms
        logger.log_evaluation(replace(EVALUATION, metrics={"win": value}, evaluated_at_ms=at_ms))
    client = import_module("mlflow").MlflowClient(f"file://{tmp_path}")
    (run,) = client.search_runs([client.get_experiment_by_name("rollbus").experiment_id])
    assert run.data.metrics["evaluation/held-out/win"] == 0.9


def test_an_mlflow_that_cannot_be_reached_stops_the_start() -> None:
    with pytest.raises(ConfigurationError, match="name a server with --tracking-uri"):
        tracker_logger("mlflow")("nowhere://x", namespace="t.")


class Away(QuietHandler):
    """A server that is not ready, and counts who asks."""

    def do_GET(self) -> None:
        self.server.request_count += 1  # type: ignore[attr-defined]
        self.send_error(503)


def test_an_mlflow_that_is_not_ready_stops_the_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(name, "")  # put back when the test ends
        monkeypatch.delenv(name)
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Away)
    server.request_count = 0
    with serve(server) as address, pytest.raises(ConfigurationError, match="name a server with --tracking-uri"):
        tracker_logger("mlflow")(address, namespace="t.")
    assert server.request_count == 2


def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    log_everything_twice(tracker_logger("wandb")("p", namespace="t.", mode="offline", folder=tmp_path))
    (data,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    names = (b"train/loss", b"evaluation/held-out/win", b"t.main")
    wait_until(
        lambda: all(name in data.read_bytes() for name in names), "its writer, a process of its own, has not all"
    )


class TrackedValue:
    """A run at W&B: a start that goes on with it is given its summary."""

    def __init__(self, **opened: Any) -> None:
        self.id, self.summary = opened["id"], dict[str, Any]()
        self.history: list[dict[str, float]] = []

    def define_metric(self, *_: Any, **__: Any) -> None:
        """W&B's way to draw."""

    def log(self, points: dict[str, float]) -> None:
        self.history.append(points)
        self.summary = json.loads(json.dumps({**self.summary, **points}))

    def finish(self) -> None:
        """Of no use here."""


def test_wandb_keeps_each_step_and_each_evaluation_once_over_restarts(tmp_path: Path) -> None:
    runs: dict[str, TrackedValue] = {}

    def open_run(**settings: Any) -> TrackedValue:
        return runs.setdefault(settings["id"], TrackedValue(**settings))

    of_an_older_version = replace(EVALUATION, evaluation_id="another", policy_version=0)
    for _ in range(2):
        logger = tracker_logger("wandb")("p", namespace="t.", mode="offline", folder=tmp_path, open_run=open_run)
        log_everything_twice(logger)
        logger.log_evaluation(of_an_older_version)
        logger.log_evaluation(replace(of_an_older_version, evaluated_at_ms=EVALUATION.evaluated_at_ms + 1))
        logger.close()
    (run,) = runs.values()
    assert [points["policy_version"] for points in run.history if "step" not in points] == [2, 0, 0]
    assert [points["step"] for points in run.history if "step" in points] == [STEP.step]


def test_wandb_without_a_key_that_it_takes_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "no-key")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="W&B refuses the login"):
        tracker_logger("wandb")("p", namespace="t.")


KEYS = {base64.b64encode(pair).decode() for pair in (b"public:secret", b"again:secret", b"twice:secret")}
"""A process has one client of Langfuse's for a public key."""


class Tracker(QuietHandler):
    """Answers as Langfuse does where keys are right, and keeps what it was sent."""

    def do_GET(self) -> None:
        accepted = self.headers.get("Authorization", "")[6:] in KEYS
        project = {"id": "p", "name": "p", "organization": {"id": "o", "name": "o"}, "metadata": {}}
        self.answer({"data": [project]} if accepted else {"message": "no"}, 200 if accepted else 401)

    def do_POST(self) -> None:
        body = self.read_json()
        if self.server.is_down:  # type: ignore[attr-defined]
            self.answer({"message": "not now"}, 404)
            return
        self.server.received.extend(body["batch"])  # type: ignore[attr-defined]
        successes = [{"id": event["id"], "status": 201} for event in body["batch"]]
        self.answer({"successes": successes, "errors": []}, 207)


@pytest.fixture
def tracker() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    server.received, server.is_down = [], False
    with serve(server):
        yield server


def test_langfuse_gets_scores_with_ids_of_their_own(tracker: Any) -> None:
    url = f"http://127.0.0.1:{tracker.server_port}"
    logger = tracker_logger("langfuse")(namespace="t.", public_key="public", secret_key="secret", base_url=url)
    log_everything_twice(logger)
    scores = [event["body"] for event in tracker.received]
    loss = [score for score in scores if score["name"] == "train/loss"]
    assert {score["value"] for score in loss} == {0.25}
    assert {score["sessionId"] for score in scores} == {"t.main"}
    assert len(loss) == 2
    assert len({score["id"] for score in loss}) == 1, "a score that comes again replaces itself"


def test_langfuse_gets_a_repeated_measurement_as_another_event_of_its_score(tracker: Any) -> None:
    url = f"http://127.0.0.1:{tracker.server_port}"
    logger = tracker_logger("langfuse")(namespace="again.", public_key="twice", secret_key="secret", base_url=url)
    for after_ms in (0, 1, 1):
        logger.log_evaluation(replace(EVALUATION, evaluated_at_ms=EVALUATION.evaluated_at_ms + after_ms))
    logger.close()
    wins = [event for event in tracker.received if event["body"]["name"] == "evaluation/held-out/win"]
    ours = [event for event in wins if event["body"]["sessionId"] == "again.main"]
    assert len({event["body"]["id"] for event in ours}) == 1
    assert len(ours) == 3
    assert len({event["id"] for event in ours}) == 2, "Langfuse reads an event id once"


def test_a_langfuse_that_takes_nothing_fails_so_that_it_is_asked_again(tracker: Any) -> None:
    url = f"http://127.0.0.1:{tracker.server_port}"
    logger = tracker_logger("langfuse")(namespace="t.", public_key="again", secret_key="secret", base_url=url)
    tracker.is_down = True
    with pytest.raises(Exception, match="not now"):
        logger.log_step(STEP)
    tracker.is_down = False
    logger.log_step(STEP)
    logger.close()
    assert "train/loss" in {event["body"]["name"] for event in tracker.received}


def test_langfuse_with_other_keys_stops_the_start(tracker: Any) -> None:
    url = f"http://127.0.0.1:{tracker.server_port}"
    with pytest.raises(ConfigurationError, match="Langfuse"):
        tracker_logger("langfuse")(namespace="t.", public_key="public2", secret_key="wrong", base_url=url)


class Failing(MemoryLogger):
    """Fails at the first try of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def log_step(self, record: StepCompleted) -> None:
        self.tries += 1
        if self.tries == 1:
            raise OSError("tracker is away")
        super().log_step(record)


async def test_a_log_feeds_a_logger_that_may_fail(settings: Any) -> None:
    await create_topics(settings)
    await send(settings, [("training-steps", "main", b"junk"), *encode_records(story())])
    logger, stop = Failing(), asyncio.Event()
    kafka = KafkaConnection(bootstrap_servers=settings.kafka.bootstrap_servers)
    running = asyncio.create_task(
        follow(kafka, settings.namespace, logger, name="memory", stop=stop, first_pause_s=0.01)
    )
    await until(lambda: logger.steps and logger.evaluations, "nothing is logged")
    stop.set()
    assert (await running, logger.tries, logger.closed) == (2, 2, True)
    assert logger.steps["main", 1]["train/loss"] == 0.25
    assert logger.evaluations["main", 2]["evaluation/held-out/win"] == 0.55


def _files_beside(config: Path) -> list[bytes]:
    return [path.read_bytes() for path in config.parent.rglob("*") if path.is_file() and path != config]


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ("mlflow --experiment shop --tracking-uri file://{folder}/mlruns", "mlruns/*/*/metrics/train/loss"),
        ("wandb --mode offline --project shop --entity us --folder {folder}/kept", "kept/wandb/offline-run-*/*.wandb"),
    ],
    ids=["mlflow", "wandb"],
)
async def test_the_command_logs_where_its_options_say(settings: Any, tmp_path: Path, options: str, files: str) -> None:
    await create_topics(settings)
    await send(settings, encode_records(story()))
    config = write_config(tmp_path, settings.kafka.bootstrap_servers, settings.namespace)
    environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}
    words = options.format(folder=tmp_path).split()
    process = await asyncio.create_subprocess_exec(
        *(ROLLBUS, "-c", str(config), "log-to", *words), cwd=tmp_path, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        await until(lambda: list(tmp_path.glob(files)), "nothing is logged")
    finally:
        process.terminate()
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert any(b"shop" in data for data in _files_beside(config))
