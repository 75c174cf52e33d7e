"""The page's server without a browser: who is served, what may be asked, and what an answer looks like."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from rollbus.consumers.clickhouse.questions.output import make_plain
from rollbus.consumers.clickhouse.questions.saved_questions import UnknownRunError
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.health.funnel.funnel import draw_funnel
from rollbus.health.funnel.numbers import FunnelNumbers, FunnelSettings
from rollbus.health.funnel.verdict import Verdict, give_verdict
from rollbus.health.lag import LagRow, make_lag_rows
from rollbus.health.picture import Look, draw_picture
from rollbus.health.status import NamespaceStatus, StatusWatch
from rollbus.runtime.health.alarms.lags import LagHistory
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.http.guard import Guard
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import GroupLag, PartitionLag
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.principals import make_principal
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.signing import Signing
from rollbus.settings import Settings
from rollbus.ui.app import STATIC, make_app, stream_pulses
from rollbus.ui.door import page_door, page_token
from rollbus.ui.page_questions import Asking, add_configured, questions
from rollbus.ui.page_reports import PageReports
from rollbus.ui.sessions import PageJudge, Sessions
from rollbus.ui.token_text import decode_each, load_texts


class AnsweringDatabase(Asking):
    """Answers from a list, one after the other; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(ClickHouseSettings(port=1), "rollbus.")
        self._answers = list(answers)

    def ask(self, name: str, values: Mapping[str, str]) -> tuple[list[str], list[list[Any]]]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def browser(asking: Asking, **options: Any) -> TestClient:
    return TestClient(make_app(asking, namespace="rollbus.", **options), base_url="http://127.0.0.1:8080")


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for path in (*STATIC.glob("*.html"), *STATIC.glob("*.js"), *STATIC.glob("views/*.js"), *STATIC.glob("*.css")):
        assert "https://" not in path.read_text()
    policy = browser(AnsweringDatabase()).get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("library", "file", "licence"),
    [
        ("uplot", "uPlot.iife.min.js", "The MIT License"),
        ("marked", "marked.esm.js", "distributed under the MIT license"),
        ("diff", "diff.min.js", "BSD 3-Clause License"),
    ],
)
def test_each_vendored_library_has_its_licence_and_version(library: str, file: str, licence: str) -> None:
    (folder,) = STATIC.glob(f"{library}-*")
    assert licence in (folder / "LICENSE.txt").read_text()
    version = folder.name.removeprefix(f"{library}-")
    text = (folder / file).read_text()
    assert version in text[:200] or library == "diff"  # its file does not name a version


def test_the_pages_token_opens_every_answer_and_is_in_no_cookie() -> None:
    secret = page_token("the stack's")
    database = AnsweringDatabase((["n"], [[1]]))
    guarded = TestClient(
        Guard(make_app(database, namespace="rollbus."), page_door(secret, Sessions(None))), base_url="http://127.0.0.1"
    )
    page_headers = {"authorization": f"Bearer {secret}"}
    cookie = {"cookie": f"rollbus-page={secret}"}
    for path in (f"/api/ask/runs?token={secret}", "/api/lag", "/api/health", "/api/live?token=wrong", "/docs"):
        assert guarded.get(path, headers=cookie).status_code == 401
    for path, headers in (
        ("/", {}),
        ("/static/page.js", {}),
        ("/api/ask/runs", page_headers),
        ("/api/lag", page_headers),
    ):
        answer = guarded.get(path, headers=headers)
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_question_of_the_page_only_reads(method: str) -> None:
    assert browser(AnsweringDatabase()).request(method, "/api/ask/runs").status_code == 405


class HearingReports(PageReports):
    """Keeps what it is told to write."""

    def __init__(self) -> None:
        super().__init__(
            KafkaConnection(), "rollbus.", signing=Signing.model_validate({"owner": "o" * 16, "principals": "p" * 16})
        )
        self.acts: list[tuple[str, str, Mapping[str, Any]]] = []

    async def report(self, judge: PageJudge, values: Mapping[str, Any]) -> str:
        self.acts.append((judge.name, judge.source, values))
        return "event-1"


PAGE = {"authorization": "Bearer page"}
OWNER = {"authorization": "Bearer secret"}


def guarded_page(
    reports: PageReports, owner: str | None = "secret", clock_ms: Callable[[], int] = lambda: 0
) -> TestClient:
    principals = {"of eve": make_principal("eve", ["feedback"]), "of an agent": make_principal("agent-7", ["record"])}
    sessions = Sessions(owner, principals.get, clock_ms)
    app = make_app(AnsweringDatabase(), namespace="rollbus.", reports=reports, sessions=sessions)
    return TestClient(Guard(app, page_door("page", sessions)), base_url="http://127.0.0.1:8080")


@pytest.mark.parametrize("path", ["/api/verdicts", "/api/data-sets"])
def test_only_a_session_writes(path: str) -> None:
    reports = HearingReports()
    page, form = guarded_page(reports), {"episode_id": "e1", "value": 1}
    for headers in ({}, PAGE, OWNER, PAGE | {"cookie": "rollbus-desk-8080=guess"}):
        assert page.post(path, json=form, headers=headers).status_code in (401, 403)
    assert reports.acts == []


def test_only_the_owners_token_and_a_reporters_open_a_session() -> None:
    page = guarded_page(HearingReports())
    for headers in ({}, PAGE, {"authorization": "Bearer "}, {"authorization": "Bearer of an agent"}):
        assert page.post("/api/session", json={"judge": "ann"}, headers=headers).status_code == 403
    without_token = guarded_page(HearingReports(), owner=None).post("/api/session", json={}, headers=OWNER)
    assert (without_token.status_code, "rollbus up" in without_token.text) == (403, True)


def test_a_principal_can_only_judge_in_its_own_name() -> None:
    reports = HearingReports()
    page = guarded_page(reports)
    opened = page.post("/api/session", json={"judge": "operator"}, headers={"authorization": "Bearer of eve"})
    assert opened.json() == {"judge": "eve", "is_owner": False}
    form = {"episode_id": "e1", "value": 1}
    assert page.post("/api/verdicts", json=form, headers=PAGE).status_code == 200
    assert reports.acts == [("eve", "judge", form)]
    refused = page.post("/api/data-sets", json={}, headers=PAGE)
    assert (refused.status_code, "eve may give verdicts" in refused.text) == (403, True)


def test_a_cookie_alone_writes_nothing() -> None:
    """Every port of this machine gets the cookie."""
    reports = HearingReports()
    page = guarded_page(reports)
    page.post("/api/session", json={"judge": "ann"}, headers=OWNER)
    assert page.post("/api/verdicts", json={"episode_id": "e1", "value": 1}).status_code == 401
    assert reports.acts == []


def test_a_session_keeps_its_judge_until_it_is_closed() -> None:
    reports = HearingReports()
    page = guarded_page(reports)
    opened = page.post("/api/session", json={"judge": "ann"}, headers=OWNER)
    assert opened.json() == {"judge": "ann", "is_owner": True}
    name, _, flags = opened.headers["set-cookie"].partition("; ")
    assert name.startswith("rollbus-desk-8080=")
    assert flags == "Path=/api; Max-Age=43200; HttpOnly; SameSite=Strict"
    assert page.get("/api/session", headers=PAGE).json() == {"judge": "ann", "is_owner": True}
    form = {"episode_id": "e1", "value": 1}
    assert page.post("/api/verdicts", json=form, headers=PAGE).json() == {"event_id": "event-1"}
    assert reports.acts == [("ann", "operator", form)]
    cookie = {"cookie": opened.headers["set-cookie"].partition(";")[0]}
    assert page.delete("/api/session", headers=PAGE).json()["judge"] is None
    assert page.get("/api/session", headers=PAGE | cookie).json()["judge"] is None
    assert page.post("/api/verdicts", json=form, headers=PAGE | cookie).status_code == 403


def test_a_session_ends_after_twelve_hours() -> None:
    clock = iter([0, 12 * 3_600_000 - 1, 12 * 3_600_000])
    page = guarded_page(HearingReports(), clock_ms=lambda: next(clock))
    page.post("/api/session", json={}, headers=OWNER)
    assert [page.get("/api/session", headers=PAGE).json()["judge"] for _ in range(2)] == ["operator", None]


def test_a_name_that_no_signature_can_carry_opens_no_session() -> None:
    page = guarded_page(HearingReports())
    for judge in ("Ann", "owner", "a b", "x" * 64):
        refused = page.post("/api/session", json={"judge": judge}, headers=OWNER)
        assert (refused.status_code, "names no principal" in refused.json()["error"]) == (400, True)


def test_without_a_key_for_signatures_a_verdict_has_one_author() -> None:
    page = guarded_page(PageReports(KafkaConnection(), "rollbus."))
    refused = page.post("/api/session", json={"judge": "ann"}, headers=OWNER)
    assert (refused.status_code, "principals" in refused.json()["error"]) == (400, True)
    assert page.post("/api/session", json={"judge": "operator"}, headers=OWNER).status_code == 200


def test_a_form_of_another_kind_is_not_read() -> None:
    page = guarded_page(HearingReports())
    page.post("/api/session", json={}, headers=OWNER)
    assert page.post("/api/verdicts", data={"episode_id": "e1"}, headers=PAGE).status_code == 415
    assert page.post("/api/verdicts", json=[1], headers=PAGE).status_code == 400
    nested = page.post("/api/verdicts", content=b"[" * 8_000, headers=PAGE | {"content-type": "application/json"})
    assert (nested.status_code, "nested less deep" in nested.json()["error"]) == (400, True)
    assert page.post("/api/verdicts", json={"comment": "x" * 20_000}, headers=PAGE).status_code == 413


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"episode_id": "e1", "value": "much"}, "value: Input should be a valid number"),
        ({"episode_id": "e1", "value": float("nan")}, "value: Input should be a finite number"),
        ({"value": 1.0}, "episode_id: Field required"),
        ({"episode_id": "e1", "value": 1, "source": "judge"}, "source: Extra inputs are not permitted"),
    ],
)
async def test_an_impossible_verdict_is_named(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        await PageReports(KafkaConnection(), "rollbus.").report(PageJudge("ann", is_owner=True), values)


def test_every_reason_of_a_drop_has_its_words() -> None:
    reasons = browser(AnsweringDatabase()).get("/api/reasons").json()
    assert reasons["untrainable"]["what"] == "has no turn that can be trained"
    assert set(reasons) >= set(map(str, DropReason)) - {"pending"}


async def test_a_data_set_has_a_name_that_a_folder_can_have() -> None:
    values = {"data_set": "../x", "trajectory_id": "t", "episode_id": "e"}
    with pytest.raises(ConfigurationError, match=r"'\.\./x' cannot name a data set"):
        await PageReports(KafkaConnection(), "rollbus.").change_member(values)


def test_a_run_that_is_gone_is_refused_with_those_that_are_there() -> None:
    gone = browser(AnsweringDatabase(UnknownRunError("no run 'x'; there are main"))).get("/api/ask/fates?run=x")
    assert (gone.status_code, gone.json()) == (404, {"error": "no run 'x'; there are main", "unknown": "run"})


def test_only_questions_with_a_name_can_be_asked() -> None:
    asking = Asking(ClickHouseSettings(port=1), "rollbus.")
    with pytest.raises(ConfigurationError, match="no question 'SELECT 1'"):
        asking.ask("SELECT 1", {})
    with pytest.raises(ConfigurationError, match="step must be Int64"):
        asking.ask("groups_of_step", {"step": "x; DROP TABLE steps"})


class FixedStatus(StatusWatch):
    """Answers what it is given, and notes that it was closed."""

    def __init__(self, answer: NamespaceStatus) -> None:
        super().__init__(Settings())
        self.answer, self.is_closed = answer, False

    async def ask(self) -> NamespaceStatus:
        return self.answer

    async def close(self) -> None:
        self.is_closed = True


def test_health_has_the_picture_and_funnels_or_the_reason_without() -> None:
    picture = draw_picture(Look(now_ms=1), LagHistory(0.0), AlarmLimits())
    funnel = draw_funnel(FunnelNumbers(now_ms=1, since_ms=0, recent_ms=0), FunnelSettings())
    fixed = FixedStatus(NamespaceStatus(picture, (funnel,), give_verdict(picture, (funnel,))))
    with browser(AnsweringDatabase(), health=fixed) as client:
        answer = client.get("/api/health").json()
        assert answer["health"]["problems"] == []
        assert answer["funnels"][0]["verdict"] == "no episode has begun yet: record one, as in README's snippet"
        fixed.answer = NamespaceStatus(None, (), Verdict("the broker does not answer", is_wrong=True), "Kafka is away")
        away = client.get("/api/health")
    assert (away.status_code, away.json()["health"], away.json()["error"]) == (200, None, "Kafka is away")
    assert fixed.is_closed
    assert browser(AnsweringDatabase()).get("/api/health").json() == {}


def test_the_runs_of_the_settings_are_known_without_clickhouse() -> None:
    nobody = Asking(ClickHouseSettings(port=1), "rollbus.", {"orders": "agent"})
    assert nobody.ask("runs", {}) == (["run_id", "newest_step", "model"], [["orders", 0, "agent"]])


def test_a_configured_run_with_rows_comes_first() -> None:
    """A configured run without rows comes last, with its model."""
    stored = [["a", 5, "other"], ["orders", 0, ""]]
    assert add_configured(stored, {"fresh": "agent-2", "orders": "agent"}) == [
        ["orders", 0, "agent"],
        ["a", 5, "other"],
        ["fresh", 0, "agent-2"],
    ]


def test_a_wrong_question_and_a_silent_clickhouse_differ_in_status() -> None:
    client = browser(AnsweringDatabase(ConfigurationError("no such"), UnavailableError("nobody answers")))
    wrong, silent = client.get("/api/ask/x"), client.get("/api/ask/x")
    assert (wrong.status_code, wrong.json()["error"]) == (400, "no such")
    assert (silent.status_code, silent.json()["error"]) == (503, "nobody answers")


def test_tokens_get_their_text_only_with_a_tokenizer() -> None:
    answer = (["token_ids"], [[[1, 2]], [None]])
    assert browser(AnsweringDatabase(answer)).get("/api/ask/conversation").json()["columns"] == ["token_ids"]
    with_text = browser(AnsweringDatabase(answer), texts=lambda ids: [f"<{token_id}>" for token_id in ids])
    assert with_text.get("/api/ask/conversation").json()["rows"] == [[[1, 2], ["<1>", "<2>"]], [None, []]]


async def test_a_pulse_comes_at_once_and_after_every_change() -> None:
    down = UnavailableError("away")
    stream = stream_pulses(
        AnsweringDatabase((["n"], [[1]]), (["n"], [[1]]), (["n"], [[2]]), down, down, (["n"], [[2]])), {}, 0
    )
    seen = [await anext(stream) for _ in range(6)]
    assert [part.split("\n")[0] for part in seen] == [
        "event: pulse",
        ":",
        "event: pulse",
        "event: down",
        ":",
        "event: pulse",
    ]


def test_an_answer_is_json_for_every_type_of_column() -> None:
    rows = make_plain([(float("nan"), datetime(2026, 1, 1, tzinfo=UTC)), {"a": float("inf")}, b"\xff", None, True])
    assert json.loads(json.dumps(rows)) == [[None, "2026-01-01T00:00:00+00:00"], {"a": None}, "ff", None, True]


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    pieces = {1: b"a", 2: "é".encode()[:1], 3: "é".encode()[1:], 4: b" b"}

    def decode(ids: Any) -> str:
        return b"".join(pieces[token_id] for token_id in ids).decode(errors="replace")

    assert decode_each([1, 2, 3, 4], decode) == ["a", "", "é", " b"]


def test_a_file_that_is_not_a_tokenizer_is_named(tmp_path: Any) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json is not a tokenizer"):
        load_texts(tmp_path)


def test_no_question_of_the_page_hides_a_saved_one() -> None:
    from rollbus.consumers.clickhouse.questions.saved_questions import list_queries
    from rollbus.ui.page_questions import FOLDER

    assert len(questions()) == len(list_queries()) + len(list(FOLDER.glob("*.sql")))


async def no_kafka() -> list[LagRow]:
    raise UnavailableError("Kafka at 127.0.0.1:1: nobody listens")


async def two_groups() -> list[LagRow]:
    return [LagRow("assembly", "episode-events", 1, 4, 12), LagRow("trainer.agent", "batches", 0, 1, 0)]


def test_every_consumer_group_is_listed_with_its_lag_and_readers() -> None:
    answer = browser(AnsweringDatabase(), lags=two_groups).get("/api/lag").json()
    assert [(group["group"], group["lag"], group["members"]) for group in answer["groups"]] == [
        ("assembly", 12, 1),
        ("trainer.agent", 0, 0),
    ]


def test_an_absent_kafka_is_reported_instead_of_a_lag_of_zero() -> None:
    answer = browser(AnsweringDatabase(), lags=no_kafka).get("/api/lag").json()
    assert answer == {"groups": [], "error": "Kafka at 127.0.0.1:1: nobody listens"}


def test_a_lag_is_summed_over_partitions_and_counts_what_retention_has_left() -> None:
    def scores(*committed: int | None) -> tuple[PartitionLag, ...]:
        return tuple(PartitionLag("r.scores", number, at, begin=5, end=10) for number, at in enumerate(committed))

    groups = {"r.grouping.main": GroupLag("Empty", 0, scores(7, 2, None)), "r.sink": GroupLag("Stable", 2, scores(10))}
    assert make_lag_rows("r.", groups) == [
        LagRow("grouping.main", "scores", members=0, partitions=3, lag=3 + 5 + 5),
        LagRow("sink", "scores", members=2, partitions=1, lag=0),
    ]


def test_a_topic_without_records_and_without_a_commit_is_not_shown() -> None:
    empty = PartitionLag("r.drops", 0, None, begin=5, end=5)
    assert make_lag_rows("r.", {"r.sink": GroupLag("Stable", 1, (empty,))}) == []
