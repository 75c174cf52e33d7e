"""What the funnel found becomes changes of the settings file; what a project lacks is known before anything runs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus.cli.commands.local.start import _offer
from rollbus.cli.root import SettingsFile
from rollbus.health.funnel.funnel import Funnel, draw_funnel
from rollbus.health.funnel.numbers import EpisodeCount, FunnelNumbers, FunnelSettings, RewardCount, RunCount
from rollbus.local import stack
from rollbus.local.stack import ServiceStatus
from rollbus.runtime.credentials import FOLDER_VARIABLE, PASSWORD, make_secrets, read_secret
from rollbus.schemas.records.config import FilterConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.settings import Settings
from rollbus.start import processes
from rollbus.start.parts import Part, find_parts, is_beating
from rollbus.start.proposals import Proposal, find_proposals, write_proposals
from tests.health.test_picture import draw, make_beat

NOW_MS, HOUR_MS = 1_800_000_000_000, 3_600_000
FILE = "# ours\nscoring: {rewards: [{type: feedback, name: right}]}\n"


def draw_run(settings: FunnelSettings, episodes: EpisodeCount, **counts: Any) -> Funnel:
    times: dict[str, Any] = {"now_ms": NOW_MS, "since_ms": NOW_MS - 24 * HOUR_MS, "recent_ms": NOW_MS - HOUR_MS}
    return draw_funnel(FunnelNumbers(**times, episodes=(episodes,), **counts), settings)


def test_rewards_that_no_component_reads_are_proposed_together() -> None:
    scoring = ScoringConfig(rewards=(RewardConfig(name="right"),))
    reports = (RewardCount("thumbs", 40, 40), RewardCount("stars", 3, 3))
    lost = EpisodeCount(1, True, "score_missing", "", 40, NOW_MS)
    proposals = find_proposals([draw_run(FunnelSettings(scoring=scoring), lost, rewards=reports)])
    assert [proposal.place for proposal in proposals] == [("scoring", "rewards")]
    assert "'thumbs'" in proposals[0].why
    changed = write_proposals(FILE, proposals)
    assert changed.startswith("# ours\n")
    settings = Settings.model_validate(yaml.safe_load(changed))
    assert [reward.name for reward in settings.scoring.rewards] == ["right", "thumbs", "stars"]


def test_a_run_whose_filter_matches_nothing_is_offered_the_tasks_seen() -> None:
    run = RunConfig(run_id="second", filter=FilterConfig(tasks=("refnud",)))
    episodes = EpisodeCount(1, True, "not_targeted", "", 5, NOW_MS)
    first, second = Funnel("main", "agent", 0), draw_run(
        FunnelSettings(run), episodes, run=RunCount(tasks=("refund",), newest_episode_ms=NOW_MS)
    )  # fmt: skip
    (proposal,) = find_proposals([first, second])
    assert proposal.text == "runs[1].filter.tasks: [refund]"


def parts_of(settings: Settings, *services: ServiceStatus, **changed_answers: Any) -> list[Part]:
    answers: dict[str, Any] = {"answering": (), "topic_mistakes": None, "processes": None}
    return list(find_parts(settings, services, **answers | changed_answers))


def test_the_trainer_of_another_run_is_not_the_one_that_starts() -> None:
    settings = Settings.model_validate({"runs": [{"run_id": name, "model": name} for name in ("a", "b")]})
    beating = draw(make_beat("trainer", holds=("run a of a",)), make_beat("worker", started_s=9.0)).processes
    parts = [Part("worker", False, ""), *(Part("trainer", False, "", run=name) for name in ("a", "b"))]
    assert [is_beating(settings, part, beating) for part in parts] == [True, True, False]


def test_the_start_reads_its_credentials_where_it_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "elsewhere"))
    make_secrets(tmp_path / "elsewhere", (PASSWORD,))
    started: list[Any] = []
    monkeypatch.setattr(stack, "require_startable", lambda *_: None)
    monkeypatch.setattr(stack, "up", lambda _, services: started.extend(services))
    settings = Settings.model_validate({"stack": {"data_dir": tmp_path / "data"}})
    processes.start_parts(settings, None, [Part("sink", False, "")])
    (clickhouse,) = started[0].is_healthy.args
    assert clickhouse.password.get_secret_value() == read_secret(tmp_path / "elsewhere", PASSWORD)


def test_a_new_project_lacks_every_part_in_the_order_in_which_they_start() -> None:
    stack = [ServiceStatus(name, "stopped", "here") for name in ("kafka", "clickhouse", "art-server")]
    parts = parts_of(Settings(), *stack)
    names = ["kafka", "clickhouse", "art-server", "topics", "worker", "sink", "trainer"]
    assert [part.name for part in parts] == names
    assert not any(part.is_there for part in parts)
    assert all(part.can_start for part in parts)


def test_a_broker_elsewhere_is_not_started_here() -> None:
    settings = Settings.model_validate({"kafka": {"bootstrap_servers": "kafka.example.com:9092"}})
    (kafka,) = [part for part in parts_of(settings, ServiceStatus("kafka", "stopped", "here")) if part.name == "kafka"]
    assert (kafka.is_there, kafka.can_start) == (False, False)
    assert kafka.detail == "kafka.example.com:9092 does not answer; it is not of this machine's stack"


def test_a_trainer_of_another_run_does_not_count_for_this_one() -> None:
    settings = Settings.model_validate({"runs": [{"run_id": "main"}, {"run_id": "second", "model": "small"}]})
    beats = make_beat("worker"), make_beat("trainer", holds=("run main of agent",))
    parts = parts_of(settings, topic_mistakes=(), processes=draw(*beats).processes)
    assert {(part.name, part.run): part.is_there for part in parts} == {
        ("topics", ""): True,
        ("worker", ""): True,
        ("sink", ""): False,
        ("trainer", "main"): True,
        ("trainer", "second"): False,
    }


def write_changes(path: Path) -> None:
    """Let `rollbus start` write one proposed change into a settings file."""
    source = SettingsFile(path)
    proposal = Proposal(("scoring", "rewards"), [{"type": "feedback", "name": "right"}], "reports come")
    _offer(source, [proposal], may_ask=False, yes=True)


def test_a_settings_file_of_its_user_alone_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text("# ours\n")
    path.chmod(0o600)
    write_changes(path)
    assert "name: right" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_to_the_settings_file_stays_a_link(tmp_path: Path) -> None:
    target, path = tmp_path / "shared.yaml", tmp_path / "rollbus.yaml"
    target.write_text("# ours\n")
    path.symlink_to(target)
    write_changes(path)
    assert path.is_symlink()
    assert "name: right" in target.read_text()
