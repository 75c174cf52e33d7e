"""Counts of a run → its funnel: numbers that add up, what is lost where, and the sentence for each situation."""

from dataclasses import replace
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from rollbus.health.funnel.forecast import say_wait
from rollbus.health.funnel.funnel import Funnel, draw_funnel, without_numbers
from rollbus.health.funnel.losses import LOSSES, explain_loss
from rollbus.health.funnel.notices import names_read
from rollbus.health.funnel.numbers import (
    STAGES,
    EpisodeCount,
    FunnelNumbers,
    FunnelSettings,
    InfluenceCount,
    LostCount,
    NextTurnCount,
    RefusedCount,
    RewardCount,
    RunCount,
    TurnCount,
    WaitingCount,
)
from rollbus.health.funnel.show import render_funnel
from rollbus.health.funnel.verdict import give_verdict, hold_funnels
from rollbus.health.picture import Look, Picture, draw_picture
from rollbus.runtime.health.alarms.lags import LagHistory
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.schemas.records.config import (
    BatchingConfig,
    DeliveryConfig,
    FilterConfig,
    GroupingConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.drops import DropReason
from rollbus.streams.worker.worker import TICKING_STAGE
from tests.health.test_picture import make_beat

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000

WORKER, TRAINER = make_beat(holds=("assembly[0]",)), make_beat("trainer", holds=("run main of agent",))
OTHER_TRAINER = make_beat("trainer", holds=("run small of agent-small",))
NAMED_REWARD = ScoringConfig(rewards=(RewardConfig(name="reward"),))


def pace_of(groups: int, span_ms: int, *, silent_ms: int = 0) -> dict[str, Any]:
    """Return what a run's count has of so many groups that came evenly, until `silent_ms` ago."""
    times_ms = tuple(NOW_MS - silent_ms - span_ms * number // groups for number in range(1, groups + 1))
    return {"groups": groups, "recent_groups_ms": times_ms, "first_group_ms": times_ms[-1]}


COMING = pace_of(9, HOUR_MS // 2) | {"waiting_groups": 4}


def count(reached: int, dropped_by: str = "", episodes: int = 1, **changes: Any) -> EpisodeCount:
    base = EpisodeCount(reached, True, dropped_by, "", episodes, NOW_MS - HOUR_MS)
    return replace(base, **changes)


def funnel(*episodes: EpisodeCount, settings: FunnelSettings | None = None, **counts: Any) -> Funnel:
    run = RunCount(**({"newest_episode_ms": NOW_MS - 60_000} | counts.pop("run", {})))
    numbers = FunnelNumbers(
        now_ms=NOW_MS, since_ms=NOW_MS - 24 * HOUR_MS, recent_ms=NOW_MS - HOUR_MS, episodes=episodes, run=run, **counts
    )
    return draw_funnel(numbers, settings or FunnelSettings())


def words_of(drawn: Funnel, code: str) -> str:
    (notice,) = [notice for notice in drawn.notices if notice.code == code]
    return f"{notice.what} → {notice.remedy}"


def print_text(drawn: Funnel, width: int = 300) -> str:
    console = Console(width=width, file=StringIO())
    console.print(render_funnel(drawn))
    return cast(StringIO, console.file).getvalue()


def test_every_episode_is_lost_waits_or_has_arrived() -> None:
    episodes = [count(0, "untrainable", 3, detail="no_logprobs"), count(0, "", 2, is_assembled=False), count(2, "", 4)]
    drawn = funnel(*episodes, count(2, "not_targeted", 5), count(3, "no_signal", 6), count(5, "", 7))
    assert [stage.episodes for stage in drawn.stages] == [27, 17, 17, 13, 7, 7]
    assert [stage.waiting for stage in drawn.stages] == [0, 2, 0, 4, 0, 0]
    assert [stage.lost_episodes for stage in drawn.stages] == [0, 8, 0, 0, 6, 0]
    for before, after in zip(drawn.stages, drawn.stages[1:], strict=False):
        assert before.episodes == after.episodes + after.waiting + after.lost_episodes


def test_every_reason_of_a_drop_has_its_stage_its_words_and_its_remedy() -> None:
    assert set(LOSSES) == set(DropReason)
    for loss in LOSSES.values():
        assert 0 < loss.stage < len(STAGES)
        assert loss.what
        assert loss.remedy
    assert explain_loss("a reason of a newer release").what == "were dropped"


def test_a_reward_after_its_group_had_closed_names_the_time_that_scores_wait() -> None:
    loss = explain_loss(DropReason.GROUP_CLOSED)
    assert loss.what == "came, or got another reward, after their group had closed"
    assert loss.remedy == "set `grouping: reward_grace_ms`, for which a score waits, or raise `window_ms`"


def test_one_lost_episode_is_named_in_the_singular() -> None:
    output = print_text(funnel(count(3, "no_signal"), count(0, "untrainable", detail="echo"), count(5, "", 9)))
    assert "1 is in a group whose rewards are all equal" in output
    assert "1 has no turn that can be trained (echo)" in output


def test_the_forecast_counts_groups_and_says_when_the_first_step_comes() -> None:
    patient = FunnelSettings(RunConfig(batching=BatchingConfig(flush_ms=None)))
    waiting = pace_of(9, 51 * 60_000) | {"waiting_groups": 9}
    drawn = funnel(count(4, "", 72), settings=patient, run=waiting)
    assert drawn.forecast is not None
    assert drawn.forecast.sentence == "9 of 16 groups: at this rate the first step comes in 40 minutes"
    assert drawn.verdict == f"0 of 72 episodes are trained; {drawn.forecast.sentence}"
    later = funnel(count(4, "", 72), settings=patient, run=waiting | {"step": 6, "waiting_groups": 16})
    assert later.verdict.endswith("16 of 16 groups: step 7 can begin")
    never = funnel(count(4, "", 72), settings=patient, run=waiting | {"recent_groups_ms": ()})
    assert "at this rate the first step never comes" in never.verdict


def test_a_step_is_promised_later_the_longer_no_group_has_come() -> None:
    patient = FunnelSettings(RunConfig(batching=BatchingConfig(flush_ms=None)))

    def promise(silent_ms: int) -> str:
        drawn = funnel(count(5, "", 72), settings=patient, run=pace_of(60, 60_000, silent_ms=silent_ms))
        return drawn.verdict.partition("at this rate ")[2]

    assert promise(0) == "the first step comes in less than a minute"
    assert promise(10 * 60_000) == "the first step comes in 10 minutes"
    assert promise(40 * 60_000) == "the first step comes in 40 minutes"


def test_groups_of_several_steps_are_counted_as_such() -> None:
    drawn = funnel(count(4, "", 72), run={"waiting_groups": 41})
    assert drawn.verdict.endswith("; 41 groups, 16 a step: the first step can begin")


def test_a_finished_batch_is_trained_next_however_few_groups_wait() -> None:
    drawn = funnel(count(4, "", 18), run={"open_batches": 1, "waiting_groups": 2, "step": 4})
    assert drawn.verdict.endswith(
        "the batch of step 5 is made, and is trained now or next; 2 of 16 groups wait for the one after it"
    )
    assert give_verdict(draw_data(WORKER, TRAINER), (drawn,)).text == "all is well"


@pytest.mark.parametrize("hold_state", ["paused", "stopped"])
def test_no_step_is_promised_of_a_run_that_takes_no_batches(hold_state: str) -> None:
    drawn = funnel(count(4, "", 72), run={"waiting_groups": 20, "open_batches": 1, "step": 1, "held": hold_state})
    assert drawn.verdict.endswith(f"20 groups, 16 a step: step 2 waits, since the run is {hold_state}")
    text = give_verdict(draw_data(WORKER, TRAINER), (drawn,)).text
    assert text == f"every process works; run main is {hold_state}"


def test_no_step_is_promised_without_the_processes_that_it_needs() -> None:
    coming = funnel(count(4, "", 72), run=COMING)
    made = funnel(count(4, "", 18), run={"open_batches": 1, "waiting_groups": 2, "step": 4})
    for beats, drawn, ending in (
        ((WORKER,), coming, "the first step waits, since no trainer of run main runs"),
        ((WORKER, OTHER_TRAINER), coming, "the first step waits, since no trainer of run main runs"),
        ((TRAINER,), coming, "the first step waits, since no worker runs"),
        ((WORKER, TRAINER), coming, coming.verdict),
        ((TRAINER,), made, made.verdict),
        ((WORKER,), made, "2 of 16 groups: step 5 waits, since no trainer of run main runs"),
    ):
        (held,) = hold_funnels(draw_data(*beats), (drawn,))
        assert held.verdict.endswith(ending)
        assert held.forecast is not None
        assert (held.forecast.eta_ms is None) == (ending != drawn.verdict)


def test_a_batch_that_is_cut_in_time_comes_by_then() -> None:
    settings = FunnelSettings(RunConfig(batching=BatchingConfig(flush_ms=HOUR_MS)))
    waiting = {"waiting_groups": 1, "oldest_waiting_ms": NOW_MS - 50 * 60_000}
    drawn = funnel(count(4), settings=settings, run=waiting)
    assert drawn.verdict.endswith("1 of 16 groups: at this rate the first step comes in 10 minutes")


def test_turns_without_ids_are_named_with_the_server_that_gave_them() -> None:
    turns = (TurnCount("gpt-4o", "no_token_ids", 40, (), ("tickets",), "https://api.openai.com"),)
    drawn = funnel(count(0, "untrainable", 40, detail="no_token_ids"), turns=turns)
    words = words_of(drawn, "untrainable_turns")
    assert words.startswith(
        "40 of 40 turns cannot be trained: the server that answers as gpt-4o at https://api.openai.com "
        "gave no token ids"
    )
    assert "recorded by tickets → serve the model with an endpoint that returns token ids" in words
    assert drawn.blocked_at == "trainable"
    assert drawn.verdict.startswith(
        "nothing can train: 40 of 40 episodes have no turn that can be trained (no_token_ids)"
    )


def test_an_unread_reward_is_named_with_the_setting_that_reads_it() -> None:
    settings = FunnelSettings(scoring=NAMED_REWARD)
    drawn = funnel(count(1, "score_missing", 40), settings=settings, rewards=(RewardCount("thumbs", 40, 40),))
    words = words_of(drawn, "unread_rewards")
    assert words.startswith("40 reports are named 'thumbs', which no component reads (read: reward)")
    assert "add `{type: feedback, name: thumbs}` to `scoring: rewards:`" in words, "in its place, `reward` would go"


@pytest.mark.parametrize(
    ("episodes", "verdict"),
    [
        (
            count(1, "score_missing", 40),
            "nothing can train: 40 of 40 episodes had no reward when they were to be grouped",
        ),
        (count(1, "", 40), "the first step waits for rewards; 40 episodes have none yet"),
    ],
)
def test_the_first_line_names_reports_that_reach_no_score(episodes: EpisodeCount, verdict: str) -> None:
    unread = funnel(
        episodes, settings=FunnelSettings(scoring=NAMED_REWARD), rewards=(RewardCount("csat", 40, 40),)
    ).verdict
    assert verdict in unread
    assert "40 reports are named 'csat', which no component reads (read: reward) → add `{type: feedback" in unread
    lost = funnel(episodes, waiting=(WaitingCount("alias", 40, "order-9"),)).verdict
    assert lost.endswith(
        "let the agent call `rb.alias(EPISODE, 'order-9')`, or report with the id that the episode has: `episode.id`"
    )
    assert funnel(episodes).verdict.count("→") == (1 if episodes.dropped_by else 0)


@pytest.mark.parametrize(
    ("waiting", "words"),
    [
        (
            WaitingCount("alias", 3, "order-9"),
            "3 reports wait for an alias that no episode has, such as 'order-9'; what waits is given up after 24.0 h → "
            "let the agent call `rb.alias(EPISODE, 'order-9')`",
        ),
        (
            WaitingCount("alias", 1, "conversation:chat-7"),
            "1 report waits for a conversation without an episode, such as 'chat-7'; what waits is given up after 24.0 "
            "h → open its episodes with `conversation='chat-7'`",
        ),
        (
            WaitingCount("episode", 1, "mine"),
            "1 report waits for an episode that has not begun, such as 'mine'; what waits is given up after 24.0 "
            "h → report with the id",
        ),
    ],
)
def test_reports_whose_episode_is_not_there_are_named(waiting: WaitingCount, words: str) -> None:
    assert words_of(funnel(count(1), waiting=(waiting,)), "waiting_reports").startswith(words)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("unresolved_alias", "since no episode has taken their alias within 24.0 h: x → let the agent call `rb.alias("),
        (
            "orphaned_reward",
            "since their episode never began, or ended more than 24.0 h before: x → report with the id",
        ),
        (
            "reward_not_allowed",
            "since their source may not set this reward, or has not signed it: x → give the reporter",
        ),
    ],
)
def test_a_refused_report_is_told_in_the_words_of_its_reporter(reason: str, words: str) -> None:
    told = words_of(funnel(count(1), refused=(RefusedCount(reason, 2, "x"),)), "refused_events")
    assert told.startswith(f"2 reports do not count ({reason}), {words}")


def test_a_changed_verdict_under_the_key_of_the_first_is_named_with_what_to_do() -> None:
    conflict = RefusedCount("duplicate_conflict", 1, "RewardReported of alias 'order-9'")
    words = words_of(funnel(count(1), refused=(conflict,)), "refused_events")
    assert words.startswith("1 event does not count (duplicate_conflict), since another with the same id or key says")
    assert "of alias 'order-9' → an `episode_id` is of one episode; a changed verdict takes a `key` of its own" in words


@pytest.mark.parametrize(
    ("counter", "words"),
    [
        (
            "calls_outside_episode",
            "calls that are in no episode, and so are not recorded: 7, counted by a, b → make them",
        ),
        (
            "events_dropped.queue_full",
            "events that never reached Kafka (queue_full): 7, counted by a, b → docs/capture",
        ),
        (
            "hook_errors.feedback",
            "failures inside the recorder (feedback): 7, counted by a, b → the log of its program",
        ),
    ],
)
def test_what_recorders_lost_is_named(counter: str, words: str) -> None:
    drawn = funnel(count(1), lost=(LostCount(counter, 7, ("b", "a")),))
    assert words_of(drawn, "lost_by_producers").startswith(words)


def test_a_promoted_replay_is_not_taken_for_an_old_file() -> None:
    applied = {"scoring": "of the replay", "assembly": "of an old file"}
    drawn = funnel(count(1), applied_hashes=applied, promoted={"scoring": "gentle"})
    words = words_of(drawn, "promoted_settings")
    assert words.startswith("the workers apply what was promoted of replay gentle, in `scoring:`, and not this file")
    assert "write it into this file" in words
    assert "in `assembly:`: they read them at their start" in words_of(drawn, "unapplied_settings")


def test_a_step_in_ten_seconds_is_not_called_a_minute_away() -> None:
    assert [say_wait(ms) for ms in (10_000, 60_000, 600_000)] == ["less than a minute", "about a minute", "10 minutes"]


def test_a_users_own_reward_function_may_read_any_name() -> None:
    assert names_read(ScoringConfig(rewards=(RewardConfig(type="mine", name="x"),))) is None
    renamed = RewardConfig(name="kind", options={"report": "thumbs"})
    length = RewardConfig(type="length", name="length")
    assert names_read(ScoringConfig(rewards=(renamed, length))) == frozenset({"thumbs"})


def test_late_rewards_are_named_with_their_median_and_the_value_to_set() -> None:
    late = RewardCount("reward", 40, 40, late=40, median_ms=3_100, most_ms=7_900)
    words = words_of(funnel(count(1, "score_missing", 40), rewards=(late,)), "late_rewards")
    assert "40 of 40 reports named 'reward' came too late for their score" in words
    assert "half of them within 3 s of the episode's end (the median)" in words
    assert words.endswith("reward_wait_ms: 15000`")


def test_groups_whose_members_never_come_are_named_with_their_size() -> None:
    settings = FunnelSettings(RunConfig(grouping=GroupingConfig(group_size=8)))
    drawn = funnel(
        count(2, "incomplete_group", 40), settings=settings, run={"short_groups": 40, "members_of_short": 1.0}
    )
    assert words_of(drawn, "short_groups").startswith("40 groups closed with 1.0 of 8 members on average")
    assert drawn.blocked_at == "grouped"


def test_the_first_attempts_of_a_task_say_what_they_wait_for() -> None:
    """Rewards that are all equal so far look like a stage that hangs, until their window is over."""
    drawn = funnel(count(2, "", 32), count(4, "", 8))
    assert words_of(drawn, "waiting_beginners").startswith(
        "32 episodes have a reward and are in no group yet: the first attempts of a task wait until two of their "
        "rewards differ, in each partition, and 10 min at most"
    )
    assert funnel(count(2, "", 8), count(4, "", 32)).notices == (), "an attempt on its way is not news"
    named = FunnelSettings(RunConfig(grouping=GroupingConfig(strategy="by_example")))
    assert funnel(count(2, "", 32), settings=named).notices == ()


def test_an_example_with_several_prompts_is_named() -> None:
    drawn = funnel(count(2, "group_mismatch", 3), run={"mismatched_example": "t-7", "prompts_of_example": 3})
    assert words_of(drawn, "other_prompts").startswith("example 't-7' began with 3 prompts besides its group's")


def test_groups_without_a_signal_are_counted() -> None:
    drawn = funnel(count(3, "no_signal", 40), run={"groups": 10, "groups_with_signal": 0})
    assert words_of(drawn, "no_signal").startswith("10 of 10 groups have equal rewards")
    assert drawn.blocked_at == "with signal"
    assert funnel(count(5), run={"groups": 10, "groups_with_signal": 6}).notices == ()


def test_a_learner_without_the_agents_model_or_version_is_named() -> None:
    drawn = funnel(count(2, "not_targeted", 4), turns=(TurnCount("qwen", "", 4, (1,)),))
    assert "answered by qwen, and run main trains agent: the learner serves no version" in words_of(
        drawn, "other_model"
    )
    others = funnel(count(4, "off_lineage", 4), turns=(TurnCount("agent", "", 4, (7,)),), run={"versions": (1, 2)})
    assert words_of(others, "other_versions").startswith("versions 7 of agent answer the agent")
    ours = funnel(count(5), turns=(TurnCount("agent", "", 4, (0, 2)),), run={"versions": (1, 2)})
    assert ours.notices == ()


def test_what_keeps_episodes_out_of_a_run_is_named() -> None:
    outside = [
        count(2, "not_targeted", 4, detail="model 'gpt-4o' is not of this run"),
        count(2, "not_targeted", 1, detail="label 'env' is not of this run"),
        count(2, "not_targeted", 2),
    ]
    losses = funnel(*outside, count(5)).stages[1].lost
    assert [(loss.reason, loss.episodes, loss.what) for loss in losses] == [
        ("not_targeted", 4, "are left out, since model 'gpt-4o' is not of this run"),
        ("not_targeted", 2, "are not of this run, by its filter or its model"),
        ("not_targeted", 1, "is left out, since label 'env' is not of this run"),
    ]


def test_log_probs_that_are_no_numbers_are_not_described_as_absent() -> None:
    drawn = funnel(
        count(0, "untrainable", 1, detail="missing_logprobs"), turns=(TurnCount("agent", "missing_logprobs", 1),)
    )
    words = words_of(drawn, "untrainable_turns")
    assert "gave log-probs of which some are missing or impossible (missing_logprobs)" in words
    assert "not finite" in words


def test_a_filter_that_matches_nothing_is_named_beside_the_tasks_seen() -> None:
    settings = FunnelSettings(RunConfig(filter=FilterConfig(tasks=("refunds",))))
    drawn = funnel(count(2, "not_targeted", 9), settings=settings, run={"tasks": ("ticket",), "agents": ("",)})
    words = words_of(drawn, "empty_filter")
    assert words.startswith(
        "the filter of run main (tasks refunds) matches none of 9 episodes, which have tasks ticket"
    )


def test_open_episodes_are_counted_with_when_they_are_given_up() -> None:
    drawn = funnel(count(0, "", 15, is_assembled=False, oldest_ms=NOW_MS - 720_000), count(5))
    assert drawn.unassembled is not None
    assert drawn.unassembled.sentence == (
        "15 are open, the oldest for 12 min; one without an event for 30 min is given up"
    )


def test_paused_episodes_are_counted_with_how_long_they_are_waited_for() -> None:
    drawn = funnel(count(0, "", 3, is_assembled=False, oldest_ms=NOW_MS - 720_000, paused=2), count(5))
    assert drawn.unassembled is not None
    assert drawn.unassembled.sentence == (
        "3 are open, the oldest for 12 min; one without an event for 30 min is given up, "
        "and of 2 that have paused after 7 days"
    )


def test_a_few_losses_while_more_is_on_its_way_block_nothing() -> None:
    assert funnel(count(3, "no_signal", 2), count(2, "", 9)).blocked_at is None


def test_a_step_without_any_reward_waits_for_rewards() -> None:
    assert funnel(count(1, "", 9)).verdict == (
        "0 of 9 episodes are trained; 0 of 16 groups: the first step waits for rewards; 9 episodes have none yet"
    )
    assert "1 episode has none yet" in funnel(count(1)).verdict
    assert "at this rate the first step never comes" in funnel(count(2, "", 9)).verdict


def test_missing_traffic_is_reported() -> None:
    assert funnel(run={"newest_episode_ms": 0}).verdict.startswith("no episode has begun yet")
    old = funnel(run={"newest_episode_ms": NOW_MS - 72 * HOUR_MS})
    assert old.verdict == "no episode has begun in the last 24 hours; the newest began 3 days ago"


def test_the_terminal_has_every_number_loss_and_notice() -> None:
    turns = (TurnCount("gpt-4o", "no_token_ids", 4),)
    output = print_text(funnel(count(0, "untrainable", 4, detail="no_token_ids"), count(5, "", 2), turns=turns))
    assert "run main of agent: 2 of 6 episodes are trained" in output
    for stage in STAGES:
        assert f"\n {stage} " in output
    assert "4 have no turn that can be trained (no_token_ids) → serve" in output
    assert "! 4 of 4 turns cannot be trained" in output
    assert "ClickHouse is away" in print_text(without_numbers(FunnelSettings(), "ClickHouse is away"))


@pytest.mark.parametrize(
    ("funnels", "beats", "text", "is_wrong"),
    [
        ((funnel(count(5), run=COMING),), (WORKER, TRAINER), "all is well", False),
        (
            (
                funnel(count(2, "", 9)),
                funnel(count(5), run=COMING | {"recent_groups_ms": (), "waiting_groups": 0, "step": 6}),
            ),
            (WORKER, TRAINER),
            "every process works; at this rate the first step of run main never comes; at this rate step 7 of run main",
            False,
        ),
        (
            (funnel(count(1, "", 9)),),
            (WORKER, TRAINER),
            "every process works; the first step of run main waits for rewards",
            False,
        ),
        ((funnel(count(1, "score_missing", 9)),), (WORKER, TRAINER), "run main cannot train", True),
        ((funnel(),), (WORKER, TRAINER), "every process works; run main has no episodes", False),
        (
            (without_numbers(FunnelSettings(), "x"),),
            (WORKER, TRAINER),
            "what becomes of the episodes is not known",
            False,
        ),
        ((funnel(count(5), run=COMING),), (), "1 problem", True),
        ((funnel(count(5), run=COMING),), (WORKER,), "no trainer of run main runs, so nothing trains", False),
        ((funnel(count(5), run=COMING),), (WORKER, OTHER_TRAINER), "no trainer of run main runs", False),
    ],
)
def test_all_is_well_only_where_processes_work_and_something_trains(
    funnels: tuple[Funnel, ...], beats: tuple[Any, ...], text: str, is_wrong: bool
) -> None:
    verdict = give_verdict(draw_data(*beats), funnels)
    assert text in verdict.text
    assert verdict.is_wrong == is_wrong


def draw_data(*beats: Any) -> Picture:
    return draw_picture(Look(now_ms=NOW_MS, beats=beats, events=100), LagHistory(300), AlarmLimits())


def test_only_data_without_an_assembling_process_is_a_problem() -> None:
    (problem,) = draw_data().problems
    assert problem.alarm == "no_process"
    assert "no process lives, and episode-events has data" in problem.what
    empty = draw_picture(Look(now_ms=NOW_MS), LagHistory(300), AlarmLimits())
    assert give_verdict(empty, (funnel(),)).text == "nothing is recorded yet, and no process runs"
    idle = (make_beat("sink"), make_beat(holds=("grouping.main[0]",)))
    (unticked,) = draw_data(*idle).problems
    assert (unticked.alarm, unticked.subject) == ("no_process", TICKING_STAGE)
    assert "no worker runs `assembly` (the workers run grouping.main), and episode-events has data" in unticked.what
    (alone,) = draw_data(make_beat("sink")).problems
    assert "no worker runs `assembly` (no worker lives)" in alone.what
    assert draw_data(make_beat("sink"), make_beat(holds=("assembly[0]", "scoring[0]"))).problems == ()
    seldom = make_beat(age_s=300, interval_ms=3_600_000, holds=("assembly[0]",))
    assert draw_data(seldom).problems == ()
    assert draw_data(make_beat("sink"), make_beat(started_s=5)).problems == ()
    (missing,) = draw_picture(Look(now_ms=NOW_MS, events=None), LagHistory(300), AlarmLimits()).problems
    assert (missing.alarm, "`rollbus start`" in missing.remedy) == ("no_topics", True)


def test_the_next_turns_of_users_are_one_line() -> None:
    counts = (
        NextTurnCount("signal", "thanks", 6, 0),
        NextTurnCount("signal", "correction", 3, 0),
        NextTurnCount("signal", "unclear", 4, 4),
        NextTurnCount("pair", "judge and next", 5, 4),
        NextTurnCount("verdict", "next", 8, 7),
    )
    drawn = funnel(count(2), next_turns=counts)
    assert drawn.next_turns == (
        "users answered 13 turns: 6 thanks, 3 correction, 4 unclear; judge and next agree on 4 of 5; "
        "next agrees with explicit verdicts on 7 of 8"
    )
    assert funnel(count(2)).next_turns == ""


def test_words_that_no_component_reads_have_their_own_remedy() -> None:
    drawn = funnel(
        count(2),
        settings=FunnelSettings(scoring=NAMED_REWARD),
        rewards=(RewardCount("next_turn", 3, 3), RewardCount("reward", 1, 1)),
    )
    assert "{type: next_turn, name: next_turn}" in words_of(drawn, "unread_rewards")
    assert names_read(ScoringConfig(rewards=(RewardConfig(type="next_turn_judge", name="judge"),))) == frozenset(
        {"next_turn"}
    )


def test_refused_events_are_named_with_count_reason_and_example() -> None:
    refused = (RefusedCount("too_many_reports", 700, "reward 'thumbs' by source 'user'"), RefusedCount("late_event", 1))
    drawn = funnel(count(5, "", 10), refused=refused)
    first, second = [notice for notice in drawn.notices if notice.code == "refused_events"]
    assert first.what.startswith("700 reports do not count (too_many_reports)")
    assert first.what.endswith("`assembly: max_reports:`: reward 'thumbs' by source 'user'")
    assert second.what.startswith("1 event does not count (late_event)")


def test_a_share_without_a_bound_is_a_notice_where_several_principals_train() -> None:
    influence = InfluenceCount(recorded=10, movers=2, mover="agent-7", share=0.9)
    assert words_of(funnel(count(5, "", 10), influence=influence), "share_without_bound").startswith(
        "2 principals recorded what was trained, and agent-7 has 90% of the absolute advantage"
    )
    bounded = RunConfig(batching=BatchingConfig(max_share_per_source={"principal": 0.5}))
    for alone, settings in ((influence, FunnelSettings(bounded)), (replace(influence, movers=1), FunnelSettings())):
        assert "share_without_bound" not in {
            notice.code for notice in funnel(count(5, "", 10), influence=alone, settings=settings).notices
        }


def test_settings_that_no_worker_has_applied_are_named_by_their_section() -> None:
    settings = FunnelSettings(RunConfig())
    applied = settings.hash_by_stage()
    for hashes in ({}, applied):  # nothing has run yet, and all is as it is set
        assert "unapplied_settings" not in {notice.code for notice in funnel(applied_hashes=hashes).notices}
    drawn = funnel(settings=settings, applied_hashes={**applied, "scoring": "other", "grouping": "other"})
    assert words_of(drawn, "unapplied_settings").startswith(
        "the workers apply other settings than these, in `scoring:` and `runs:`"
    )


def test_an_episode_that_is_most_of_a_step_is_named() -> None:
    influence = InfluenceCount(largest=0.5, trajectory="t1", step=3)
    assert words_of(funnel(count(5, "", 10), influence=influence), "outsized_episode").startswith(
        "trajectory t1 alone has 50% of the absolute advantage of step 3"
    )
    assert funnel(count(5, "", 10), influence=replace(influence, largest=0.25)).notices == ()


def test_unsigned_evidence_and_a_held_canary_are_notices_of_delivery() -> None:
    influence = InfluenceCount(recorded=10, unsigned=4, canary=3, holds=("one_principal:reward",), unbalanced=7)
    codes = ("unsigned_evidence", "held_canary", "unbalanced_evidence")
    judged = FunnelSettings(RunConfig(delivery=DeliveryConfig()))
    drawn = funnel(count(5, "", 10), influence=influence, settings=judged)
    assert tuple(notice.code for notice in drawn.notices) == codes
    assert words_of(drawn, "unsigned_evidence").startswith("4 of 10 episodes are signed by nobody")
    assert funnel(count(5, "", 10), influence=influence).notices == ()
