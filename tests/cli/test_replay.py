"""What `rollbus replay` hands to the replay itself, what it refuses before it reads, and what it says of none."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollbus.cli.replay.options import find_registry
from rollbus.cli.replay.plan import make_plan, make_replay
from rollbus.cli.replay.printing import ProgressLine, show_comparison, show_manifest
from rollbus.cli.root import rollbus
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import CurriculumConfig, GroupingConfig, RewardConfig, RunConfig
from rollbus.schemas.records.replays import ReplayManifest, ReplayRange
from rollbus.settings import Settings
from rollbus.streams.replay.compare.differences import Difference, ReplayComparison
from rollbus.streams.replay.plan.plan import ReplayPlan
from rollbus.streams.rewards.endpoint import Endpoint
from rollbus.streams.state.ticker import config_applied
from rollbus.terminal import silence
from tests.waiting import wait_until


def plan_for(settings: Settings, **changes: Any) -> ReplayPlan:
    """What the options say, all but these left out."""
    options: dict[str, Any] = {
        "start": "earliest",
        "end": "latest",
        "stages": (),
        "name": "again",
        "feedback": "recorded",
        **dict.fromkeys(("reward", "grouping", "curriculum")),
        **dict.fromkeys(("rescore", "allow_missing", "dry_run"), False),
    }
    return make_plan(settings, **(options | changes))


@pytest.mark.parametrize("base_url", ["http://judge/v1", None])
def test_a_replay_may_ask_the_judge_that_is_configured(base_url: str | None) -> None:
    settings = Settings.model_validate({"judge": {"base_url": base_url, "model": "wise"}})
    plan = plan_for(settings, rescore=True)
    assert isinstance(make_replay(settings, plan, None).ask, Endpoint) is (base_url is not None)


@pytest.mark.parametrize("options", [{"rescore": True, "reward": "judge"}, {"rescore": True, "grouping": "JUDGED"}])
def test_an_unnamed_model_is_not_asked_again(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "JUDGED").write_text("rewards: [{type: judge_relative, name: judge}]")
    options = {name: str(tmp_path / value) if value == "JUDGED" else value for name, value in options.items()}
    with pytest.raises(ConfigurationError, match=r"reward judge asks a model, .* `judge: base_url:`"):
        make_replay(Settings(), plan_for(Settings(), **options), None)


def test_options_of_a_reward_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "scoring.yaml").write_text("rewards: [{type: regex, name: cites, options: {patern: x}}]")
    (tmp_path / "grouping.yaml").write_text("rewards: [{type: judge_relative, name: best, options: {rubrik: x}}]")
    with pytest.raises(ConfigurationError, match=r"reward 'cites': regex has no option patern; it takes full, pattern"):
        plan_for(Settings(), reward=str(tmp_path / "scoring.yaml"))
    with pytest.raises(ConfigurationError, match=r"reward 'best': judge_relative has no option rubrik"):
        plan_for(Settings(), grouping=str(tmp_path / "grouping.yaml"))


@pytest.mark.parametrize("stages", [("scoring",), ("grouping", "curriculum"), ("alias",)])
def test_rewards_of_the_end_are_refused_where_no_episode_is_assembled(stages: tuple[str, ...]) -> None:
    settings = Settings.model_validate({})
    with pytest.raises(ConfigurationError, match=r"--feedback end .* leave --stage out, or name assembly"):
        plan_for(settings, feedback="end", stages=stages)
    assert plan_for(settings, stages=stages).stages[0] == stages[0]
    for whole in ((), ("assembly",)):
        assert plan_for(settings, feedback="end", stages=whole).feedback == "end"


async def test_groups_are_not_judged_again_without_written_trajectories() -> None:
    judged = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="judge_relative", name="judge"),)))
    settings = Settings.model_validate({"judge": {"base_url": "http://judge/v1", "model": "wise"}, "runs": (judged,)})
    for stages in ((), ("assembly", "scoring", "grouping", "curriculum")):
        plan = plan_for(settings, rescore=True, dry_run=True, stages=stages)
        with pytest.raises(ConfigurationError, match=r"over groups .* leave out --dry-run or --rescore"):
            await make_replay(settings, plan, None).run(dry_run=True)


def test_a_shadow_that_stops_says_what_it_wrote_and_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    show_manifest(ReplayManifest(name="gentle", namespace="replay-gentle.rollbus.", source_namespace="rollbus.",
                                 state="following", stages=("scoring",), ranges=(), records={"scores": 3},
                                 started_at_ms=0))  # fmt: skip
    output = capsys.readouterr().out
    assert "wrote 3 scores" in output
    assert "shadow 'gentle' is in replay-gentle.rollbus.*; the same command continues it" in output


TWO_RUNS = (
    RunConfig(grouping=GroupingConfig(group_size=6, window_ms=5_000)),
    RunConfig(run_id="alone", model="alone", grouping=GroupingConfig(strategy="single", group_size=3)),
)


def test_changes_are_made_to_what_each_run_has() -> None:
    plan = plan_for(Settings(runs=TWO_RUNS), grouping="group_size=4", curriculum="pools")
    assert [(run.grouping.strategy, run.grouping.group_size, run.grouping.window_ms) for run in plan.run_configs()] == [
        (run.grouping.strategy, 4, run.grouping.window_ms) for run in TWO_RUNS
    ]
    assert {run.curriculum.mode for run in plan.run_configs()} == {"pools"}


def test_changes_are_made_to_what_was_in_force_in_the_log() -> None:
    recorded_config = RunConfig(grouping=GroupingConfig(group_size=8, window_ms=1_234))
    plan = plan_for(Settings(runs=TWO_RUNS), grouping="group_size=4")
    changed = plan.change(config_applied("grouping", "main", recorded_config))
    assert changed is not None
    grouping = RunConfig.model_validate_json(changed.content).grouping
    assert (grouping.group_size, grouping.window_ms) == (4, 1_234)


def test_changes_that_a_run_of_the_log_cannot_have_are_refused_with_its_name() -> None:
    recorded_config = RunConfig(run_id="small", grouping=GroupingConfig(group_size=2, min_group_size=2))
    plan = plan_for(Settings(runs=TWO_RUNS), grouping="min_group_size=3")
    with pytest.raises(ConfigurationError, match=r"run small.*min_group_size=3"):
        plan.change(config_applied("grouping", "small", recorded_config))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grouping": "group_siz=4"}, r"--grouping: group_siz: is not a setting; did you mean 'group_size'\?"),
        ({"grouping": "group_size=many"}, r"--grouping: group_size: .*got 'many'"),
        ({"grouping": "group_size=4,"}, r"--grouping 'group_size=4,' .* name=value"),
        ({"grouping": "group_size=4,group_size=8"}, r"--grouping .* gives group_size twice"),
        ({"curriculum": "harnes"}, r"--curriculum 'harnes' is neither a file nor a mode; did you mean 'harness'\?"),
        ({"grouping": "gruping.yaml"}, r"--grouping 'gruping.yaml' is not a file"),
        ({"reward": "feedbak"}, r"--reward 'feedbak' .* did you mean 'feedback'\?"),
        ({"stages": ("grupping",)}, r"no stage grupping; did you mean 'grouping'\?"),
    ],
)
def test_a_misspelled_name_is_refused_with_the_nearest(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        plan_for(Settings(), **options)


@pytest.mark.parametrize("option", ["reward", "grouping", "curriculum"])
def test_an_empty_option_is_refused(option: str) -> None:
    """As a variable of the shell that is not set."""
    with pytest.raises(ConfigurationError, match=rf"--{option} '' is n"):
        plan_for(Settings(), **{option: ""})


def test_a_folder_named_like_a_mode_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off").mkdir()
    assert plan_for(Settings(), curriculum="off").new_curriculum is not None


@pytest.mark.parametrize("argument", ["off", "mode=off", "curriculum: {mode: off}", "mode: off"])
def test_a_curriculum_that_is_off_can_be_said(argument: str, tmp_path: Path) -> None:
    """YAML takes the word for a truth value."""
    if ":" in argument:
        path = tmp_path / "curriculum.yaml"
        path.write_text(argument)
        argument = str(path)
    run = RunConfig(curriculum=CurriculumConfig(mode="harness"))
    (changed,) = plan_for(Settings(runs=(run,)), curriculum=argument).run_configs()
    assert changed.curriculum.mode == "off"


@pytest.mark.parametrize("text", ["scoring:\n", "scoring: feedback\n", "scoring: [feedback]\n", "", "[1]\n"])
def test_a_file_whose_section_is_not_a_mapping_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"r\.yaml holds no mapping"):
        plan_for(Settings(), reward=str(tmp_path / "r.yaml"))


@pytest.mark.parametrize("text", ["rewards: 2026-13-45", "rewards: " + "[" * 600 + "]" * 600])
def test_a_file_that_no_reader_of_yaml_gets_through_is_refused_in_words(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(text)
    for option in ("reward", "grouping", "curriculum"):
        with pytest.raises(ConfigurationError, match=r"r\.yaml: "):
            plan_for(Settings(), **{option: str(tmp_path / "r.yaml")})


@pytest.mark.parametrize("value", ["2026-13-45", "[" * 600 + "]" * 600])
def test_a_value_that_no_reader_of_yaml_gets_through_is_refused_in_words(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--grouping: .* is not a value: "):
        plan_for(Settings(), grouping=f"group_size={value}")


@pytest.mark.parametrize(
    "given", ["3", "lambda trajectory: 1.0", "lambda: 1.0", "lambda a, b, c: 1.0", "type('Lazy', (), {})"]
)
def test_a_function_that_cannot_take_a_trajectory_and_context_is_refused(given: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"good = {given}\n")
    with pytest.raises(
        ConfigurationError, match=r"mine\.py:good cannot be loaded: .*(trajectory, context|is not a function)"
    ):
        plan_for(Settings(), reward=f"{tmp_path / 'mine.py'}:good")


@pytest.mark.parametrize(
    "given", ["lambda trajectory, context: 1.0", "lambda *both: 1.0", "lambda a, b, c=0: 1.0", "max"]
)
def test_a_function_that_takes_a_trajectory_and_context_is_accepted(given: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"good = {given}\n")
    assert plan_for(Settings(), reward=f"{tmp_path / 'mine.py'}:good").new_scoring is not None


def test_a_reward_may_be_in_a_folder_whose_name_has_a_colon(tmp_path: Path) -> None:
    file = tmp_path / "12:30" / "mine.py"
    file.parent.mkdir()
    file.write_text("good = lambda trajectory, context: 1.0\n")
    assert plan_for(Settings(), reward=f"{file}:good").new_scoring is not None
    with pytest.raises(ConfigurationError, match="is a Python file; name its function too"):
        plan_for(Settings(), reward=str(file))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reward": "feedback", "stages": ("grouping",)}, "--reward changes scoring"),
        ({"rescore": True, "stages": ("assembly",)}, "--rescore changes scoring"),
        ({"grouping": "group_size=4", "stages": ("assembly", "scoring")}, "--grouping changes grouping"),
        ({"curriculum": "harness", "stages": ("grouping",)}, "--curriculum changes curriculum"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{says}, which is not replayed"):
        plan_for(Settings(), **options)


def test_a_file_of_rewards_may_hold_what_looks_for_its_module(tmp_path: Path) -> None:
    path = tmp_path / "points.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Point:\n"
        "    x: float\n\n\ndef good(trajectory, context):\n    return Point(0.5).x\n"
    )
    function = find_registry(f"{path}:good")["points.good"]
    assert pickle.loads(pickle.dumps(function)).call(None, None) == 0.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reward", "feedback", "--as", "fixed"], "say where to begin"),
        (["--dry-run"], "say where to begin"),
        (["--from", "earliest", "shadow", "--as", "beside"], "--from before shadow would have no effect"),
        (["--from", "earliest", "--as", "beside", "list"], "--from, --as before list would have no effect"),
    ],
)
def test_options_without_effect_are_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(rollbus, ["replay", *arguments])
    assert result.exit_code == 2
    assert says in result.output


def test_replay_without_options_shows_its_help() -> None:
    result = CliRunner().invoke(rollbus, ["replay"])
    assert result.exit_code == 0
    assert "shadow" in result.output


def test_the_words_of_people_and_models_are_shown_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are not markup, which would vanish or end the command, and a name between colons is not an emoji."""
    examples = ("task [withheld 9f2c]", "judge raised ValueError('[/INST]')", "example:key:7")
    differences = tuple(Difference("score", "changed", why, False, 1, (why,)) for why in examples)
    show_comparison(ReplayComparison("live", "again", {}, differences), "rollbus.")
    output = capsys.readouterr().out
    assert all(output.count(example) == 2 for example in examples)


def test_a_comparison_names_the_next_commands_and_questions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_comparison(ReplayComparison("live", "again", {}, ()), "rollbus.")
    output = capsys.readouterr().out
    assert "after `rollbus replay load again`" in output
    assert "live_against_replay --param namespace=rollbus. --param replay=replay-again.rollbus." in output
    assert "shadow_against_live --param namespace=rollbus. --param other=replay-again.rollbus." in output


def test_the_result_of_a_replay_names_the_reasons_of_drops(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = ReplayManifest(name="again", namespace="replay-again.rollbus.", source_namespace="rollbus.",
                          state="complete", stages=("scoring",), ranges=(), records={"drops": 5},
                          started_at_ms=0)  # fmt: skip
    failures = {"polite: NaN": 1, "polite: ZeroDivisionError: division by zero": 2}
    show_manifest(manifest, drops={"stale": 1, "excluded": 1, "score_failed": 3}, failures=failures)
    shown = capsys.readouterr().out
    assert "drops: 3 score_failed, 1 excluded, 1 stale" in shown
    assert "2 of 3 scores that failed: polite: ZeroDivisionError: division by zero" in shown


def test_a_replay_shows_its_progress_speed_and_remaining_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "QUIET_S", 0.05)
    with ProgressLine() as line:
        watch = line.watch()
        watch.begin((ReplayRange(topic="episode-events", partition=0, from_offset=100, to_offset=300),))
        watch.progress(0, 0, 0)
        watch.stream_time(1_795_396_735_067)
        for _ in range(2):
            watch.progress(25, 20, 1_000_000)
        written = wait_until(lambda: capsys.readouterr().err, "no line came")
    assert (line.records, line.size) == (40, 2_000_000)
    assert re.match(r"replaying 2026-11-23 01:18:55 \([\d,]+ records/s, [\d.]+ MB/s\): \d+ of 200 offsets", written)
