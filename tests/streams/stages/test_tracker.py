"""Expected rewards, habits of tasks, and what batches make of single attempts."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean, pvariance
from typing import Any

import pytest

from rollbus.schemas.records.events import Message
from rollbus.streams.stages.curriculum.batching import centre_single_attempts, count_that_fit, usual_age_ms
from rollbus.streams.stages.grouping.habits import Habit
from rollbus.streams.stages.grouping.tracker import KEEP_PER_VERSION, MOST_WEIGHT, Breadth, Level, expectation
from rollbus.streams.stages.scoring.sketch import BYTES, sketch_opening
from tests.builders import make_group, make_member


def level(*rewards: float, version: int = 0) -> Level:
    level_so_far = Level()
    for reward in rewards:
        level_so_far = level_so_far.add(reward, version, 0)
    return level_so_far


def test_a_level_is_the_mean_of_its_rewards() -> None:
    mean_level = level(0.0, 1.0, 1.0)
    assert (mean_level.total, mean_level.weight) == (2.0, 3.0)


def test_a_reward_counts_less_with_every_version_since() -> None:
    aged_level = level(0.0).add(1.0, 2, 0)
    assert aged_level.total / aged_level.weight == pytest.approx(1 / (1 + KEEP_PER_VERSION**2))


def test_a_reward_of_an_old_version_counts_less_also_where_it_comes_last() -> None:
    late, early = level(1.0, version=2).add(0.0, 0, 0), level(0.0).add(1.0, 2, 0)
    assert (late.total, late.weight) == pytest.approx((early.total, early.weight))


def test_a_level_rests_on_a_bounded_number_of_rewards() -> None:
    long_level = level(*[0.0] * 1_000, *[1.0] * int(MOST_WEIGHT))
    assert long_level.weight == MOST_WEIGHT
    assert long_level.total / long_level.weight > 0.6


def test_a_narrow_level_leans_on_the_wider_one_until_it_has_seen_enough() -> None:
    task = level(*[0.0] * 20)
    once, often = (expectation([("task", [task]), ("example", [level(*[1.0] * count)])], 0) for count in (1, 8))
    assert once is not None
    assert often is not None
    assert (once.breadth, often.breadth) == ("task", "example")
    assert (once.value, often.value) == pytest.approx((1 / 3, 0.8))


def test_nothing_is_expected_of_an_unknown_task() -> None:
    assert expectation([("task", [Level()]), ("opening", []), ("example", [Level()])], 0) is None


@pytest.mark.parametrize(("size", "expected"), [(1, False), (2, True), (8, True)])
def test_attempts_that_come_in_groups_are_a_habit(size: int, expected: bool) -> None:
    habit = Habit()
    for number in range(40):
        habit = habit.with_attempt(again=number % size > 0)
    assert habit.comes_again is expected


@pytest.mark.parametrize(("delay_ms", "grace_ms"), [(0, 1_000), (3_000, 4_000), (8_000, 8_000), (600_000, 1_024_000)])
def test_scores_wait_as_long_as_late_rewards_take(delay_ms: int, grace_ms: int) -> None:
    assert Habit().with_rewarded().with_late_change(delay_ms).grace_ms(2_000_000) == grace_ms


def test_seldom_late_rewards_make_no_score_wait() -> None:
    habit = Habit().with_late_change(3_000)
    for _ in range(100):
        habit = habit.with_rewarded()
    assert habit.grace_ms(600_000) == 0


def test_a_delay_of_months_is_counted_and_not_waited_for() -> None:
    assert Habit().with_rewarded().with_late_change(10**10).grace_ms(600_000) == 0


def single(name: str, advantage: float, **fields: int) -> object:
    return make_group(name, (1.0,), closed_by="single", members=(make_member(name, advantage=advantage, **fields),))


def test_single_attempts_of_a_batch_are_centred_and_groups_are_not() -> None:
    singles = [single(f"s{number}", float(number)) for number in range(8)]
    group = make_group("g")
    centred_groups = centre_single_attempts([*singles, group], "mean")  # type: ignore[list-item]
    assert centred_groups[-1] == group
    assert [centred_group.members[0].advantage for centred_group in centred_groups[:-1]] == [
        number - 3.5 for number in range(8)
    ]


def test_few_single_attempts_keep_their_advantages() -> None:
    singles = [single(f"s{number}", 1.0) for number in range(7)]
    assert centre_single_attempts(singles, "mean") == singles  # type: ignore[arg-type]


def test_a_batch_takes_as_many_single_attempts_as_full_groups_would_have() -> None:
    singles = [single(f"s{number}", 1.0) for number in range(40)]
    assert count_that_fit([make_group("g"), *singles], 4, 8) == 25  # type: ignore[list-item]
    assert count_that_fit([make_group(f"g{number}") for number in range(9)], 4, 8) == 4


def test_the_usual_age_is_that_of_most_attempts() -> None:
    singles = [(single(f"s{number}", 1.0, first_seen_ms=100 - number), 110) for number in (1, 2, 3, 90)]
    assert usual_age_ms(singles) == 12  # type: ignore[arg-type]
    assert usual_age_ms([(make_group("g"), 5)]) == 0


def message(text: str) -> Message:
    return Message(role="user", content=text)


def test_openings_with_the_same_words_have_the_same_sketch() -> None:
    first = sketch_opening([Message(role="system", content="Be brief."), message("Where is my parcel?")])
    assert first == sketch_opening([message("where is my PARCEL")])
    assert len(bytes.fromhex(first)) == BYTES


def test_openings_alike_share_more_cells_than_others() -> None:
    chance, words = random.Random(3), [f"word{number}" for number in range(500)]
    alike, others = [0, 0], [0, 0]
    for _ in range(200):
        first = chance.sample(words, 12)
        for counts, second in ((alike, first[:8] + chance.sample(words, 4)), (others, chance.sample(words, 12))):
            sketches = [bytes.fromhex(sketch_opening([message(" ".join(text))])) for text in (first, second)]
            counts[0] += sum(mine == theirs for mine, theirs in zip(*sketches, strict=True))
            counts[1] += BYTES
    assert alike[0] / alike[1] == pytest.approx(0.5, abs=0.07)  # 8 of 16 words
    assert others[0] / others[1] < 0.05


@pytest.mark.parametrize(
    ("alike", "other"),
    [
        (("我的订单还没有到,请帮我查一下物流信息。", "我的订单还没有到,请帮我查一下退款进度。"), "今天天气怎么样?"),
        (("注文した商品がまだ届いていません。", "注文した商品がまだ届きません。"), "パスワードを忘れた"),
        (("พัสดุของฉันยังไม่มาถึงช่วยตรวจสอบ", "พัสดุของฉันยังไม่มาถึงช่วยคืนเงิน"), "วันนี้อากาศดี"),
    ],
    ids=["Chinese", "Japanese", "Thai"],
)
def test_openings_alike_share_cells_in_scripts_without_spaces(alike: tuple[str, str], other: str) -> None:
    first, second, third = (bytes.fromhex(sketch_opening([message(text)])) for text in (*alike, other))
    assert sum(mine == theirs for mine, theirs in zip(first, second, strict=True)) >= 1
    assert sum(mine == theirs for mine, theirs in zip(first, third, strict=True)) == 0


@pytest.mark.parametrize("letters", ["一二三四五六七八九十百千", "あいうえおかきくけこさし"], ids=["Han", "kana"])
def test_texts_without_spaces_share_cells_as_often_as_they_share_pairs_of_letters(letters: str) -> None:
    chance, shared, cells = random.Random(3), 0, 0
    for _ in range(200):
        first = "".join(chance.sample(letters, 9))
        second = first[:7] + "".join(chance.sample("龍鳳麒麟", 2))  # 6 pairs of 10 are in both
        sketches = [bytes.fromhex(sketch_opening([message(text)])) for text in (first, second)]
        shared += sum(mine == theirs for mine, theirs in zip(*sketches, strict=True))
        cells += BYTES
    assert shared / cells == pytest.approx(0.6, abs=0.07)


@pytest.mark.parametrize(("word", "other"), [("दिन", "दान"), ("ปี", "ปู")], ids=["Hindi", "Thai"])
def test_words_that_differ_by_a_vowel_sign_are_not_the_same(word: str, other: str) -> None:
    assert sketch_opening([message(word)]) != sketch_opening([message(other)])


def test_a_word_in_another_script_is_a_word_of_its_own() -> None:
    assert sketch_opening([message("iPhone15坏了")]) == sketch_opening([message("iphone15 坏了")])


@pytest.mark.parametrize(
    ("text", "sketch"),
    [
        ("Where is my parcel?", "b07d9753"),
        ("Für Grüße: größer, naïve_name 42", "9b8261af"),
        ("Где моя посылка?", "e468c860"),
        ("내 소포가 어디에 있나요", "f052724e"),
    ],
)
def test_a_text_of_words_between_spaces_has_this_sketch(text: str, sketch: str) -> None:
    """It is in the log: another one would be in none of the cells of earlier attempts."""
    assert sketch_opening([message(text)]) == sketch


@pytest.mark.parametrize("messages", [[], [Message(role="system", content="hello")], [message("")], [message("…!")]])
def test_an_opening_without_a_word_of_the_user_has_no_sketch(messages: list[Message]) -> None:
    assert sketch_opening(messages) == ""


ANSWERS = 32


@dataclass
class Simulation:
    """A policy over 32 answers, all equally likely, of which so many are right: its gradient is known exactly.

    By an answer's logit it is (1 if the answer is right, else 0, less the share of right ones) / 32. An attempt
    estimates it by (reward − baseline) times the gradient of its answer's log-prob. The variance is the mean squared
    distance between the two. `none` has no baseline, `tracker` what is expected of single attempts, and `groups` the
    leave-one-out mean of eight attempts, of which seven serve the baseline alone.
    """

    chance: random.Random
    levels: dict[str, Level] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=lambda: {"none": [], "tracker": [], "groups": []})
    slopes: dict[str, list[float]] = field(default_factory=lambda: {"none": [], "tracker": [], "groups": []})
    """Along the exact gradient, by how much the estimates differ from it: 0 on average, if they are unbiased."""

    def attempt(self, right: int, keys: dict[Breadth, list[str]]) -> None:
        rewards = [float(self.chance.randrange(ANSWERS) < right) for _ in range(8)]
        share = right / ANSWERS
        of_answer, norm = (rewards[0] - share) / ANSWERS, share * (1 - share) / ANSWERS
        levels_by_breadth: Any = [
            (breadth, [self.levels.get(key, Level()) for key in names]) for breadth, names in keys.items()
        ]
        expected_level = expectation(levels_by_breadth, 0)
        baselines = {
            "none": 0.0,
            "tracker": expected_level.value if expected_level else 0.0,
            "groups": sum(rewards[1:]) / 7,
        }
        for name, baseline in baselines.items():
            advantage = rewards[0] - baseline
            self.errors[name].append(advantage**2 * (1 - 1 / ANSWERS) - 2 * advantage * of_answer + norm)
            self.slopes[name].append(advantage * of_answer - norm)
        for key in chain.from_iterable(keys.values()):
            self.levels[key] = self.levels.get(key, Level()).add(rewards[0], 0, 0)

    def saved_share(self) -> float:
        """Return the share of the variance that groups of eight take which the tracker takes."""
        for name, values in self.slopes.items():
            assert abs(fmean(values)) < 4 * math.sqrt(pvariance(values) / len(values)), f"{name} is biased"
        variances = {name: fmean(values) for name, values in self.errors.items()}
        assert variances["groups"] < 0.7 * variances["none"]
        return (variances["none"] - variances["tracker"]) / (variances["none"] - variances["groups"])


def test_the_tracker_takes_most_of_the_variance_that_groups_take() -> None:
    chance = random.Random(7)
    simulation, chances = Simulation(chance), [chance.randint(4, 28) for _ in range(400)]
    for _ in range(20):
        for example in chance.sample(range(len(chances)), len(chances)):
            simulation.attempt(chances[example], {"task": ["task"], "example": [f"example {example}"]})
    assert simulation.saved_share() > 0.9


def test_similar_openings_take_more_variance_than_the_task_alone() -> None:
    """Tickets of 20 topics, each of them easy or hard; a ticket has six words of its topic and six of anything."""
    saved = []
    for breadths in (("task",), ("task", "opening")):
        chance = random.Random(11)
        simulation, chances = Simulation(chance), [chance.choice((4, 28)) for _ in range(20)]
        for _ in range(6_000):
            topic = chance.randrange(20)
            words = [f"topic{topic}-{chance.randrange(10)}" for _ in range(6)]
            words += [f"word{chance.randrange(300)}" for _ in range(6)]
            sketch = sketch_opening([message(" ".join(words))])
            cells = [f"{place}{sketch[place : place + 2]}" for place in range(0, len(sketch), 2)]
            keys: dict[Breadth, list[str]] = {"task": ["task"], "opening": cells}
            simulation.attempt(
                chances[topic], {breadth: names for breadth, names in keys.items() if breadth in breadths}
            )
        saved.append(simulation.saved_share())
    task_alone, with_openings = saved
    assert with_openings > task_alone + 0.04


SLOW, FAST = 0.01, 0.1
"""How far a step moves the policy, on a scale of which values move by one circle in 2π."""


def excess_variance(every: int, versions_of_step: Callable[[float], int]) -> float:
    """Return what the error of the expectation adds to the variance of rewards, as a share of it.

    80 examples, each attempted every so many versions. Their values wander as the policy moves, which is slow for 40
    versions and fast for the next 40. `versions_of_step` is as how many versions a step counts when rewards fade.
    """
    chance, levels, task = random.Random(5), dict[int, Level](), Level()
    places = [(chance.gauss(0, 1.5), chance.gauss(1, 2)) for _ in range(80)]
    errors, variances, moved, version = list[float](), list[float](), 0.0, 0
    for step in range(240):
        distance = FAST if step // 40 % 2 else SLOW
        moved, version = moved + distance, version + versions_of_step(distance)
        for example in range(step % every, len(places), every):
            base, reach = places[example]
            share = 1 / (1 + math.exp(-base - reach * math.sin(moved)))
            reward, before = float(chance.random() < share), levels.get(example, Level())
            expected = expectation([("task", [task]), ("example", [before])], version)
            if expected is not None and step >= 40:
                errors.append((expected.value - share) ** 2)
                variances.append(share * (1 - share))
            levels[example], task = before.add(reward, version, 0), task.add(reward, version, 0)
    return fmean(errors) / fmean(variances)


@pytest.mark.parametrize(("every", "most_lost"), [(2, 0.10), (5, 0.05), (10, 0.02)])
def test_fading_by_version_loses_little_against_fading_by_step_size(every: int, most_lost: float) -> None:
    """By movement a reward keeps 95 % over a slow step and 86 % over a fast one: the range of the paper's tracker."""
    by_version = excess_variance(every, lambda _: 1)
    by_movement = excess_variance(every, lambda distance: 3 if distance == FAST else 1)
    assert by_version - by_movement < most_lost
