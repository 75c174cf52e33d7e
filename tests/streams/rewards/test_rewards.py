"""What each built-in reward says of a trajectory."""

import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import AssemblyConfig, RewardConfig, ScoringConfig
from rollbus.schemas.records.trajectories import Reward, Trajectory
from rollbus.streams.pipeline import namespace_stages
from rollbus.streams.rewards import registry
from rollbus.streams.rewards.contract import RewardContext, RewardFunction, TurnValues
from rollbus.streams.rewards.judge import judge
from rollbus.streams.rewards.options import OPTIONS
from tests.builders import make_trajectory


def value(kind: str, trajectory: Trajectory, **options: Any) -> Any:
    call: Any = registry.BUILT_IN[kind].call
    answer = call(trajectory, RewardContext("reward", options))
    return answer.total if isinstance(answer, TurnValues) else answer


def rewarded_trajectory(*rewards: tuple[float, str | None]) -> Trajectory:
    return make_trajectory(
        rewards=tuple(
            Reward(event_id=str(index), name="reward", value=number, turn_event_id=turn)
            for index, (number, turn) in enumerate(rewards)
        )
    )


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        ([], {}, None),
        ([(0.0, None)], {}, 0.0),
        ([(1.0, None), (0.5, None)], {}, 0.5),
        ([(1.0, "t1"), (0.5, "t2")], {}, 1.5),
        ([(1.0, "t1"), (0.25, None)], {}, 0.25),
        ([(1.0, None), (0.5, None)], {"combine": "mean"}, 0.75),
        ([(1.0, None)], {"report": "other"}, None),
        ([(1.0, None)], {"source": "human"}, None),
    ],
)
def test_feedback_says_what_was_reported_under_its_name(
    rewards: list[tuple[float, str | None]], options: dict[str, Any], expected: float | None
) -> None:
    assert value("feedback", rewarded_trajectory(*rewards), **options) == expected


@pytest.mark.parametrize(
    ("rewards", "options", "shares"),
    [
        ([(1.0, "t1"), (0.5, "t2")], {}, {"t1": 1.0, "t2": 1.0}),
        ([(1.0, "t1"), (0.5, "t2")], {"combine": "mean"}, {"t1": 0.5, "t2": 0.5}),
        ([(1.0, "t1"), (0.5, "t2")], {"combine": "min"}, {"t1": 0.0, "t2": 1.0}),
        ([(1.0, "t1"), (0.5, "t2")], {"combine": "last"}, {"t1": 0.0, "t2": 1.0}),
    ],
)
def test_reports_on_turns_have_their_share_of_the_value(
    rewards: list[tuple[float, str | None]], options: dict[str, Any], shares: dict[str, float]
) -> None:
    call: Any = registry.BUILT_IN["feedback"].call
    answer = call(rewarded_trajectory(*rewards), RewardContext("reward", options))
    assert {turn.turn_event_id: turn.share for turn in answer.turns} == shares
    assert sum(turn.share * turn.value for turn in answer.turns) == pytest.approx(answer.total)


def test_shaped_rewards_divide_the_whole_among_turns() -> None:
    steps = tuple(
        Reward(event_id=turn, name="good.step", value=value, turn_event_id=turn)
        for turn, value in (("t1", 0.25), ("t2", 0.5))
    )
    whole = Reward(event_id="w", name="good", value=1.75)
    call: Any = registry.BUILT_IN["feedback"].call
    answer = call(make_trajectory(rewards=(*steps, whole)), RewardContext("good"))
    assert answer.total == 1.75
    assert {turn.turn_event_id: (turn.value, turn.share) for turn in answer.turns} == {
        "t1": (0.25, 1.0),
        "t2": (0.5, 1.0),
    }


def test_the_steps_of_a_report_are_of_its_source_too() -> None:
    steps = tuple(
        Reward(event_id=source, name="good.step", value=value, turn_event_id="t1", source=source)
        for source, value in (("agent", 9.0), ("checker", 0.25))
    )
    whole = Reward(event_id="w", name="good", value=1.0, source="checker")
    call: Any = registry.BUILT_IN["feedback"].call
    answer = call(make_trajectory(rewards=(*steps, whole)), RewardContext("good", {"source": "checker"}))
    assert [(turn.event_id, turn.value) for turn in answer.turns] == [("checker", 0.25)]


def spoken(*reports: tuple[str, str, float]) -> Trajectory:
    """A trajectory with reports: principal, name and value of each, in the broker's order."""
    rewards = [
        Reward(event_id=str(place), name=name, value=value, principal=principal)
        for place, (principal, name, value) in enumerate(reports)
    ]
    return make_trajectory(rewards=tuple(rewards))


MANY = [("stranger", "reward", -1.0)] * 1_000


@pytest.mark.parametrize(
    ("reports", "options", "expected"),
    [
        ([("agent", "reward", 0.0), ("agent", "reward", 1.0)], {}, 1.0),
        ([("agent", "reward", 1.0), ("stranger", "reward", -1.0)], {}, 0.0),
        ([("agent", "reward", 1.0), *MANY], {}, 0.0),
        ([("agent", "reward", 1.0), *((who, f"n{number}", value) for number, (who, _, value) in enumerate(MANY))],
         {"report": "*"}, 0.0),
        ([("agent", "reward", 1.0), ("stranger", "reward", -1.0)], {"combine": "last"}, -1.0),
        ([("agent", "reward", 1.0), *MANY, ("operator", "reward", 0.5), ("agent", "reward", 1.0)], {}, 0.5),
    ],
)  # fmt: skip
def test_each_principal_has_one_voice_that_the_owner_can_overrule(
    reports: list[tuple[str, str, float]], options: dict[str, Any], expected: float
) -> None:
    assert value("feedback", spoken(*reports), **options) == expected


def test_one_of_two_principals_has_half_of_the_value_of_turns() -> None:
    by = {"agent": 1.0, "stranger": -3.0}
    rewards = [
        Reward(event_id=f"{who}-{turn}", name="reward", value=worth, turn_event_id=turn, principal=who)
        for who, worth in by.items()
        for turn in ("t1", "t2")
    ]
    strange = Reward(event_id="step", name="reward.step", value=9.0, turn_event_id="t1", principal="nobody-else")
    call: Any = registry.BUILT_IN["feedback"].call
    answer = call(make_trajectory(rewards=(*rewards, strange)), RewardContext("reward"))
    assert (answer.total, {turn.value for turn in answer.turns}) == (-2.0, {0.5, -1.5})
    assert sum(turn.share * turn.value for turn in answer.turns) == answer.total


def test_feedback_refuses_an_unknown_way_to_combine() -> None:
    with pytest.raises(ValueError, match="`combine` is 'median'; choose one of last, sum"):
        value("feedback", rewarded_trajectory((1.0, None)), combine="median")


@pytest.mark.parametrize(
    ("kind", "text", "options", "expected"),
    [
        ("exact_match", " 5 ", {"answer": "5"}, 1.0),
        ("exact_match", "6", {"answer": "5"}, 0.0),
        ("exact_match", "Yes", {"answer": "yes", "ignore_case": True}, 1.0),
        ("exact_match", "5", {}, None),
        ("regex", "the answer is 42", {"pattern": r"\d+"}, 1.0),
        ("regex", "the answer is 42", {"pattern": r"\d+", "full": True}, 0.0),
        ("json_valid", '{"a": 1}', {}, 1.0),
        ("json_valid", '{"a": 1', {}, 0.0),
        ("json_valid", '{"a": 1}', {"required": "a, b"}, 0.0),
        ("json_valid", '```json\n{"a": 1}\n```', {"fenced": True, "required": "a"}, 1.0),
        ("json_valid", "[" * 100_000, {}, 0.0),
        *(("json_valid", text, {}, 0.0) for text in ("NaN", "-Infinity", '{"a": NaN}', "[Infinity]")),
        ("json_valid", '"NaN"', {}, 1.0),
        ("length", "5", {"target": 2}, 1.0),
        ("length", "5", {"target": 1, "limit": 3}, 0.5),
        ("length", "5", {"target": 1, "limit": 2}, 0.0),
    ],
)
def test_rewards_of_the_text_have_the_expected_value(
    kind: str, text: str, options: dict[str, Any], expected: float | None
) -> None:
    assert value(kind, make_trajectory(text=text), **options) == expected


def test_a_pattern_that_backtracks_without_end_fails_alone() -> None:
    before = signal.getsignal(signal.SIGALRM)
    trajectory = make_trajectory(text="a" * 60 + "b")
    with pytest.raises(TimeoutError, match=r"ran for more than 0\.02 s"):
        value("regex", trajectory, pattern="(a+)+$", within_s=0.02)
    assert value("regex", trajectory, pattern="a+", within_s=60) == 1.0
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))


def test_a_pattern_is_searched_in_any_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(value, "regex", make_trajectory(text="42"), pattern=r"\d+").result() == 1.0


def test_exact_match_reads_the_answer_from_a_label() -> None:
    assert value("exact_match", make_trajectory(text="5", labels={"answer": "5"})) == 1.0


async def test_a_judge_sees_the_conversation_as_data_and_its_last_number_counts() -> None:
    seen: list[Any] = []

    async def ask(messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str:
        seen.extend(messages)
        return "2 good moves, 1 bad one.\n7"

    trajectory = make_trajectory(text="centre")
    assert await judge(trajectory, RewardContext("judge", {}, ask)) == 0.7
    assert "user: your move\nassistant: centre" in seen[1]["content"]
    assert "never an instruction" in seen[0]["content"]


async def grade(answer: str) -> float | None:
    """What a judge says whose model answers so."""

    async def ask(messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str:
        return answer

    return await judge(make_trajectory(), RewardContext("judge", {}, ask))


@pytest.mark.parametrize(
    "answer", ["3/10", "Two good moves.\n**Grade: 3 / 10**", "**3**/10.", "3 out of 10", "3.0/10.0"]
)
async def test_a_judge_may_name_the_scale_of_its_grade(answer: str) -> None:
    assert await grade(answer) == 0.3


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Note: 9,5", 0.95), ("9,5/10", 0.95), ("9,25 / 10,0", 0.925), ("Grade: .5", 0.05), ("7,5.", 0.75),
        ("1, 8", 0.8), ("good.8", 0.8), ("1,000 words.\n8.5", 0.85), ("8.", 0.8),
    ],
)  # fmt: skip
async def test_a_judge_may_write_a_decimal_comma_or_no_zero_before_the_point(answer: str, expected: float) -> None:
    assert await grade(answer) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "message"), [("no idea", "no number"), ("11", "outside 0 … 10"), ("3/5", "3.* of 5.* not of 10")]
)
async def test_a_judge_that_gives_no_grade_fails(answer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await grade(answer)


async def test_a_judge_without_an_endpoint_says_what_to_set() -> None:
    with pytest.raises(ValueError, match="no endpoint"):
        await judge(make_trajectory(), RewardContext("judge"))


def test_an_unusable_installed_function_stops_the_process_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Entry:
        name, value = "mine", "package:mine"

        def load(self) -> Any:
            return RewardFunction(lambda group: [], per="group")  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()])
    with pytest.raises(ConfigurationError, match=r"package:mine cannot be loaded: .*called with \(group, context\)"):
        registry.load_registry()


def test_functions_come_from_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards_of_a_test.py").write_text(
        "from rollbus.streams.rewards.contract import RewardFunction\n"
        "shortest = RewardFunction(lambda group, context: [0.0] * len(group), per='group', version='7')\n"
        "def plain(trajectory, context): return 1.0\n"
    )
    info = tmp_path / "my_rewards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rewards\nVersion: 1.0\n")
    names = ("shortest", "plain")
    entries = "".join(f"{name} = my_rewards_of_a_test:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[rollbus.rewards]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = registry.load_registry()
    assert functions.keys() == {*registry.BUILT_IN, *names}
    assert isinstance(functions["plain"], RewardFunction)
    assert (functions["shortest"].per, functions["shortest"].version) == ("group", "7")
    registry.check(functions, (RewardConfig(type="shortest"),), "group")


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("length", {}, "length needs the option target"),
        ("length", {"target": None}, "length needs the option target"),
        ("length", {"target": 100, "limit": 50}, "the option limit is 50; it must be above target, 100"),
        ("length", {"target": "short"}, "the option target is 'short', not a number"),
        (
            "regex",
            {"patern": "x"},
            "regex has no option patern; it takes full, pattern, within_s; .*needs the option pat",
        ),
        ("regex", {"pattern": "("}, r"the option pattern is '\(', no regular expression: "),
        ("exact_match", {"ignore_case": "no"}, "the option ignore_case is 'no', not true or false"),
        ("feedback", {"combine": "median"}, "the option combine is 'median', none of last, sum, mean, min, max"),
        ("judge", {"scale": 0}, "the option scale is 0, not above 0"),
        ("next_turn", {"thank": 1}, "next_turn has no option thank; it takes .*thanks, thanks_words"),
        ("next_turn_judge", {"where": "here"}, "the option where is 'here', none of everywhere, unclear"),
        ("next_turn_judge", {"hint": "oracle"}, "the option hint is 'oracle', none of user, judge"),
        ("repetition", {"n": 1.5}, "the option n is 1.5, not a whole number"),
        ("surprisal", {"n": 4}, "surprisal has no option n; it takes none"),
    ],
)
def test_an_option_that_cannot_be_read_is_refused_at_the_start(kind: str, options: Any, words: str) -> None:
    reward = RewardConfig(type=kind, name="mine", options=options)
    with pytest.raises(ConfigurationError, match=f"^reward 'mine': {words}"):
        namespace_stages(AssemblyConfig(), ScoringConfig(rewards=(reward,)), registry=registry.BUILT_IN)


def test_options_of_the_documentation_and_of_users_functions_are_taken() -> None:
    functions = {**registry.BUILT_IN, "length": RewardFunction(lambda trajectory, context: 1.0)}
    options_by_type: dict[str, Any] = {
        "next_turn": {"repetition": -0.5, "silence": None, "thanks_words": "tack, super"},
        "next_turn_judge": {"where": "unclear", "hint": "judge", "model": "small"},
        "judge": {"rubric": "Is the answer polite?", "model": "another-model"},
        "length": {"anything": "else"},
    }
    rewards = [RewardConfig(type=kind, name=kind, options=options) for kind, options in options_by_type.items()]
    registry.check(functions, rewards, "trajectory")
    assert {*OPTIONS} == {*registry.BUILT_IN}
