"""Log-probs from an endpoint that fails, lies or comes back, and which candidate is estimated next."""

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.estimates.candidate_estimator import find_due
from rollbus.estimates.scoring import EndpointScorer
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.config import ESTIMATES
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.operate.policy_on_log import KnownVersion
from tests.web import QuietHandler, serve


class Answering(ThreadingHTTPServer):
    """Gives its answers in turn, and the last one for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, Any]] = []
        self.request_count = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(QuietHandler):
    server: Answering

    def do_POST(self) -> None:
        self.read_body()
        self.server.request_count += 1
        status, body = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if isinstance(body, str):
            self.answer_text(body, "text/html", status)
        else:
            self.answer(body, status)


@pytest.fixture
def server() -> Iterator[Answering]:
    answering_server = Answering()
    with serve(answering_server):
        yield answering_server


async def score(server: Answering) -> list[list[float]]:
    async def at_once(seconds: float) -> None:
        pass

    scorer = EndpointScorer(server.url, sleep=at_once)
    try:
        return await scorer.score("agent@1", [[1, 2, 3], [4, 5]])
    finally:
        await scorer.close()


def scoring_answer(*logprobs: Any) -> dict[str, Any]:
    return {
        "choices": [
            {"index": i, "logprobs": {"token_logprobs": logprobs_of_choice}}
            for i, logprobs_of_choice in enumerate(logprobs)
        ]
    }


async def test_a_server_that_is_busy_is_asked_again(server: Answering) -> None:
    server.answers = [(503, {}), (429, {}), (200, scoring_answer([None, -1, -2], [None, 0.00001]))]
    assert await score(server) == [[-1, -2], [0.0]]
    assert server.request_count == 3


async def test_a_server_that_stays_away_is_named(server: Answering) -> None:
    server.answers = [(503, {"error": "restarting"})]
    with pytest.raises(UnavailableError, match=r"did not score agent@1: 503 .*restarting"):
        await score(server)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((404, {"error": "no such model"}), "serves no agent@1: its checkpoint is gone"),
        ((400, {"error": "echo is not supported"}), "does not score prompts of agent@1: 400 .*echo is not supported"),
        ((200, {"choices": [{"index": 0, "text": "hello"}]}), "does not score prompts: KeyError"),
        ((200, "<html>a gateway's own page</html>"), "does not score prompts: JSONDecodeError"),
        ((200, scoring_answer([None, -1, -2], [None, -1, -1])), "scores other tokens than those it was given"),
        ((200, scoring_answer([None, -1], [None, -1])), "scores other tokens than those it was given"),
        ((200, scoring_answer([None, -1, 3], [None, -1])), "a log-prob is not a finite number of at most 0"),
        ((200, scoring_answer([None, -1, None], [None, -1])), "does not score prompts: TypeError"),
    ],
)
async def test_an_invalid_scoring_answer_is_refused_with_its_mistake(
    server: Answering, answer: tuple[int, Any], says: str
) -> None:
    server.answers = [answer]
    with pytest.raises(ConfigurationError, match=says):
        await score(server)
    assert server.request_count == 1


def version(number: int, state: Any = "candidate", *, serving: bool = False, estimated: bool = False) -> KnownVersion:
    evaluation = Evaluation(
        evaluation_id="e", model="agent", policy_version=number, name=ESTIMATES, episodes=1, evaluated_at_ms=0
    )
    return KnownVersion(number, None, state, serving, False, "", (evaluation,) if estimated else ())


def test_the_newest_candidate_above_the_serving_version_is_estimated_once() -> None:
    serving = version(3, "serving", serving=True)
    assert find_due([serving, version(4), version(5)]) == 5
    assert find_due([serving, version(4), version(5, estimated=True)]) is None
    assert find_due([version(2), serving]) is None
    assert find_due([serving, version(4, "quarantined")]) is None
    assert find_due([]) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a version, or follow all candidates by --follow"),
        (["3", "--follow"], "name a version, or follow all candidates by --follow"),
        (["3", "--since", "a week"], "--since a week: write 7d, 12h, 30m or 90s"),
        (["3", "--admitted"], "--admitted needs --replay"),
        (["--follow", "--replay", "r"], "--follow estimates by the recorded rewards alone"),
    ],
)
def test_an_impossible_command_is_refused_before_a_broker_is_asked(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(rollbus, ["policy", "estimate", *arguments])
    assert result.exit_code == 1
    assert says in result.output
