"""The OpenPipe logger against a scripted server, which holds what comes to the fields of OpenPipe's own client."""

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from rollbus.consumers.loggers.openpipe_logger import OpenPipeLogger
from rollbus.schemas.errors import ConfigurationError
from tests.services.consumers.test_loggers import EVALUATION, STEP, log_everything_twice
from tests.web import QuietHandler, serve

pytestmark = pytest.mark.services

FIELDS = {"requestedAt", "receivedAt", "reqPayload", "respPayload", "statusCode"}
"""Of `POST /report` in OpenPipe's client 5.0.0, without its deprecated `tags`, and the message of an error."""


class OpenPipe(QuietHandler):
    """Answers as OpenPipe does where the key is right, and keeps what was reported."""

    def do_GET(self) -> None:
        is_known_path = self.path == "/api/v1/models"
        accepted = self.headers["Authorization"] == "Bearer key"
        self.answer({"object": "list", "data": []}, 404 if not is_known_path else 200 if accepted else 401)

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.read_json()
        assert (self.path, self.headers["Authorization"]) == ("/api/v1/report", "Bearer key")
        if server.status == 200:
            server.received.append(body)
        self.answer({"status": "ok"} if server.status == 200 else {"message": "not now"}, server.status)


@pytest.fixture
def openpipe() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), OpenPipe)
    server.received, server.status = [], 200
    with serve(server):
        yield server


def logger_of(server: Any, key: str = "key", path: str = "/api/v1") -> OpenPipeLogger:
    return OpenPipeLogger(namespace="t.", api_key=key, base_url=f"http://127.0.0.1:{server.server_port}{path}")


def test_a_step_or_an_evaluation_is_one_call_with_numbers_as_metadata(openpipe: Any) -> None:
    logger = logger_of(openpipe)
    logger.log_step(STEP)
    logger.log_evaluation(EVALUATION)
    logger.close()
    step, evaluation = openpipe.received
    assert set(step) == set(evaluation) == FIELDS
    assert (step["requestedAt"], step["receivedAt"]) == (STEP.started_at_ms, STEP.completed_at_ms)
    metadata = step["reqPayload"]["metadata"]
    assert (metadata["rollbus.run"], metadata["rollbus.step"]) == (f"t.{STEP.run_id}", str(STEP.step))
    assert metadata["train/loss"] == "0.25"
    assert step["respPayload"]["choices"][0]["message"]["content"].splitlines().count("train/loss: 0.25") == 1
    assert evaluation["reqPayload"]["model"] == f"{EVALUATION.model}@{EVALUATION.policy_version}"
    numbers = {f"evaluation/{EVALUATION.name}/{name}": str(value) for name, value in EVALUATION.metrics.items()}
    assert numbers.items() <= evaluation["reqPayload"]["metadata"].items()
    assert {type(value) for value in evaluation["reqPayload"]["metadata"].values()} == {str}


def test_a_record_that_comes_again_has_the_same_id(openpipe: Any) -> None:
    log_everything_twice(logger_of(openpipe))
    ids = [call["reqPayload"]["metadata"]["rollbus.id"] for call in openpipe.received]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_an_openpipe_that_takes_nothing_now_is_asked_again(openpipe: Any, status: int) -> None:
    logger = logger_of(openpipe)
    openpipe.status = status
    with pytest.raises(OSError, match="not now"):
        logger.log_step(STEP)
    openpipe.status = 200
    logger.log_step(STEP)
    logger.close()
    assert len(openpipe.received) == 1


def test_a_record_that_openpipe_never_takes_does_not_keep_the_next_waiting(
    openpipe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logger_of(openpipe)
    openpipe.status = 400
    logger.log_step(STEP)
    openpipe.status = 200
    logger.log_evaluation(EVALUATION)
    logger.close()
    assert len(openpipe.received) == 1
    assert f"step {STEP.step} of run {STEP.run_id}" in caplog.text


@pytest.mark.parametrize(
    ("key", "path", "hint"), [("wrong", "/api/v1", "OPENPIPE_API_KEY"), ("key", "/elsewhere", "OPENPIPE_BASE_URL")]
)
def test_a_wrong_key_or_address_stops_the_start(openpipe: Any, key: str, path: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        logger_of(openpipe, key, path)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/api/v1", "no address"])
def test_an_openpipe_that_cannot_be_reached_stops_the_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="OPENPIPE_BASE_URL"):
        OpenPipeLogger(namespace="t.", api_key="key", base_url=url)
