"""A look at the log → what is wrong, by the broker's clock alone."""

import re
from dataclasses import replace
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from rollbus.health.funnel.verdict import give_verdict
from rollbus.health.picture import Look, Picture, add_traffic, draw_picture
from rollbus.health.show import render
from rollbus.health.status import NamespaceStatus
from rollbus.runtime.health.alarms.lags import Lag, LagHistory
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.processes import Beat
from rollbus.runtime.health.alarms.runs import StepRecord
from rollbus.runtime.health.heart import Report, advance
from rollbus.schemas.records.groups import CurriculumState
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepStarted
from rollbus.settings import HealthSection
from rollbus.streams.kafka.settings import StreamSettings
from tests.builders import make_step

NOW_MS = 1_800_000_000_000
LIMITS = AlarmLimits()


def make_beat(kind: str = "worker", *, age_s: float = 1.0, started_s: float = 1000.0, **changes: Any) -> Beat:
    taken_ms = NOW_MS - round(age_s * 1000)
    beat = Heartbeat(
        process=f"{kind}@here:7-{started_s}",
        kind=kind,
        host="here",
        pid=7,
        version="0.1.0",
        number=3,
        interval_ms=5_000,
        started_at_ms=NOW_MS - round(started_s * 1000),
        beat_at_ms=taken_ms,
    )
    return Beat(replace(beat, **changes), taken_ms)


def step_of(number: int, *, reward: float = 0.5, age_s: float = 60.0, **metrics: float) -> StepCompleted:
    ended_ms = NOW_MS - round(age_s * 1000)
    metrics = {"reward_mean": reward, **metrics}
    return make_step(number, metrics=metrics, started_at_ms=ended_ms - 500, completed_at_ms=ended_ms)


def draw(*beats: Beat, limits: AlarmLimits = LIMITS, **look: Any) -> Picture:
    return draw_picture(Look(now_ms=NOW_MS, beats=beats, **look), LagHistory(300), limits)


def alarms(picture: Picture) -> list[str]:
    return [problem.alarm for problem in picture.problems]


HOUR_S = 3_600.0


def archive_beat(age_s: float, **changes: Any) -> Beat:
    """The last beat of an archive job that reached the end of the log when it ended."""
    reached = {"archived_to_ms": NOW_MS - round(age_s * 1000), "kept_ms": 168 * 3_600_000}
    return make_beat("archive", age_s=age_s, started_s=age_s + 60, is_last=True, positions=reached, **changes)


def test_an_archive_without_new_jobs_is_behind_before_retention_deletes() -> None:
    assert alarms(draw(make_beat(), archive_beat(83 * HOUR_S))) == []
    (problem,) = draw(make_beat(), archive_beat(200 * HOUR_S), archive_beat(85 * HOUR_S)).problems
    assert problem.alarm == "archive_behind"
    assert problem.what == "the archive is 4 days behind, and Kafka keeps records for 7 days"


def test_missed_records_of_an_archive_job_are_reported_until_a_whole_one() -> None:
    lost = archive_beat(2 * HOUR_S, trouble="retention deleted drops[0] 3 … 8 before this run")
    (problem,) = draw(make_beat(), lost).problems
    assert (problem.alarm, "drops[0] 3 … 8" in problem.what) == ("archive_missing", True)
    assert draw(make_beat(), lost, archive_beat(HOUR_S)).problems == ()


def test_an_archive_job_that_failed_is_dead_with_its_cause_and_misses_no_record() -> None:
    """Such as the second of two archivers: the first has archived all."""
    refused = make_beat("archive", age_s=60.0, started_s=90.0, trouble="it ended: another archiver was first")
    (problem,) = draw(make_beat(), archive_beat(HOUR_S), refused).problems
    assert (problem.alarm, "another archiver was first" in problem.what) == ("silence", True)
    lost = archive_beat(2 * HOUR_S, trouble="retention deleted drops[0] 3 … 8 before this run")
    assert sorted(alarms(draw(make_beat(), lost, refused))) == ["archive_missing", "silence"]


@pytest.mark.parametrize("ended_at_s", [48 * HOUR_S, 0.0], ids=["wrong all the time", "set while it ran"])
def test_an_archive_job_with_a_wrong_clock_hides_no_archive_that_is_behind(ended_at_s: float) -> None:
    """Its clock was two days ahead when it began."""
    job = archive_beat(85 * HOUR_S)
    ahead = {"archived_to_ms": job.taken_ms + 48 * 3_600_000, "kept_ms": 168 * 3_600_000}
    beat = archive_beat(85 * HOUR_S, beat_at_ms=job.taken_ms + round(ended_at_s * 1000))
    beat = replace(beat, heartbeat=replace(beat.heartbeat, positions=ahead))
    (problem,) = draw(make_beat(), beat).problems
    assert problem.what == "the archive is 4 days behind, and Kafka keeps records for 7 days"


def test_a_process_that_beats_is_well() -> None:
    picture = draw(make_beat())
    assert (picture.processes[0].state, picture.problems, picture.versions) == ("working", (), ("0.1.0",))


def test_a_process_that_misses_three_beats_is_dead_for_the_others() -> None:
    picture = draw(make_beat(age_s=17, holds=("scoring[0]", "scoring[1]")))
    assert picture.processes[0].state == "silent"
    (problem,) = picture.problems
    assert problem.what == "worker 7 on here has been silent for 17 s; it held scoring[0], scoring[1]"
    assert draw(make_beat(age_s=15)).problems == ()
    (problem,) = draw(make_beat("trainer", age_s=17, trouble="it ended: the base was rolled back")).problems
    assert problem.what.endswith("silent for 17 s; it ended: the base was rolled back")


def test_a_process_that_ended_on_request_is_not_missed() -> None:
    picture = draw(make_beat(age_s=600, is_last=True))
    assert (picture.processes[0].state, picture.problems) == ("stopped", ())


def test_a_later_process_replaces_one_dead_process_of_its_kind() -> None:
    dead = [make_beat(age_s=100, started_s=900), make_beat(age_s=90, started_s=901)]
    assert alarms(draw(*dead, make_beat(started_s=50))) == ["silence"]
    assert alarms(draw(*dead, make_beat(started_s=50), make_beat(started_s=49))) == []
    assert alarms(draw(*dead, make_beat("sink", started_s=50), make_beat(started_s=500))) == ["silence"] * 2


def test_only_the_last_failed_start_of_a_process_is_missed() -> None:
    failed = [make_beat("sink", age_s=age_s, started_s=age_s + 5) for age_s in (900.0, 600.0, 300.0)]
    assert [problem.subject for problem in draw(*failed).problems] == ["sink@here:7-305.0"]
    assert draw(*failed, make_beat("sink", started_s=100.0)).problems == ()
    assert draw(*failed, make_beat("sink", age_s=50.0, started_s=100.0, is_last=True)).problems == ()


def test_a_process_stopped_by_a_signal_is_named_with_the_remedy() -> None:
    (problem,) = draw(replace(make_beat(age_s=17), is_frozen=True)).problems
    assert "kill -CONT 7" in problem.remedy


def test_a_process_that_beats_while_its_work_does_not_move_is_not_well() -> None:
    waiting = make_beat(waiting_since_ms=NOW_MS - 1_000 - 601_000)
    picture = draw(waiting)
    assert (picture.processes[0].state, alarms(picture)) == ("waiting", ["waiting"])


def test_a_stuck_worker_is_reported_before_it_ends_itself() -> None:
    waiting_s = AlarmLimits().waiting_s
    assert waiting_s is not None
    assert waiting_s + 3 * HealthSection().interval_s < StreamSettings().stalled_s


def test_a_waiting_part_is_named_while_the_rest_of_its_process_moves() -> None:
    first = make_beat().heartbeat
    stuck = advance(first, Report(work=first.work + 9, waits=("stage scoring[0] at 7", 601.0)), now_ms=NOW_MS)
    (problem,) = draw(Beat(stuck, NOW_MS)).problems
    assert problem.alarm == "waiting"
    assert problem.what.endswith("its work has not moved for 10 min: stage scoring[0] at 7")
    moves = advance(stuck, Report(work=first.work + 9), now_ms=NOW_MS)
    assert (moves.waiting_since_ms, moves.waiting_at) == (None, None)


def test_beats_say_since_when_work_waits() -> None:
    first = make_beat().heartbeat
    still = advance(first, Report(work=0, is_behind=True), now_ms=1)
    still = advance(still, Report(work=0, is_behind=True), now_ms=2)
    assert still.waiting_since_ms == 1
    moved = advance(still, Report(work=1, is_behind=True), now_ms=3)
    assert (moved.waiting_since_ms, moved.last_work_ms, moved.number) == (None, 3, first.number + 3)
    assert advance(still, Report(work=0, trouble="x" * 10_000), now_ms=4).trouble == "x" * 500


def test_a_wrong_clock_and_a_full_disk_are_problems_of_their_host() -> None:
    beat = make_beat(beat_at_ms=NOW_MS + 60_000, disk_free_bytes=2**30, disk_total_bytes=2**40)
    problems = {problem.alarm: problem for problem in draw(beat, make_beat("sink")).problems}
    assert problems["clock"].what == "the clock of here is 61 s ahead of the broker's"
    assert problems["disk"].what == "1.00 of 1024 GiB are free on here"


def test_lag_is_a_problem_where_it_grows_all_the_time_or_no_process_reads() -> None:
    history = LagHistory(300)

    def look(at_s: int, members: int, lag: int) -> Picture:
        seen = Look(now_ms=NOW_MS + at_s * 1000, lags=[Lag("scoring", "trajectories", members, lag)])
        history.add(seen.now_ms, seen.lags)
        return draw_picture(seen, history, LIMITS)

    assert alarms(look(0, 1, 2_000)) == []
    assert alarms(look(200, 1, 5_000)) == []
    grown = look(301, 1, 6_000)
    assert alarms(grown) == ["lag"]
    assert "6000 records behind in trajectories, 4000 more than 5 min ago" in grown.problems[0].what
    assert alarms(look(600, 1, 4_000)) == []
    assert "no process reads" in look(601, 0, 4_000).problems[0].what


def test_a_trainer_reads_although_the_broker_has_no_member_of_its_group() -> None:
    lags = (Lag("trainer.main", "batches", 0, 2_000), Lag("trainer.other", "batches", 0, 2_000))
    picture = draw(make_beat("trainer", holds=("run main of agent",)), lags=lags)
    assert {group.group: group.members for group in picture.groups} == {"trainer.main": 1, "trainer.other": 0}
    assert [problem.subject for problem in picture.problems] == ["trainer.other in batches"]


def test_lag_that_rises_and_falls_with_ticks_is_not_a_problem() -> None:
    history = LagHistory(300)
    for at_s in range(0, 1_200, 5):
        lags = [Lag("assembly", "episode-events", 1, 512 * (at_s % 12)), Lag("scoring", "trajectories", 1, 40 * at_s)]
        seen = Look(now_ms=NOW_MS + at_s * 1000, lags=lags)
        history.add(seen.now_ms, seen.lags)
        growing = [problem.subject for problem in draw_picture(seen, history, LIMITS).problems]
        assert growing == (["scoring in trajectories"] if at_s >= 300 else [])


def test_a_run_with_a_failed_step_or_no_recent_one_is_a_problem() -> None:
    assert alarms(draw(steps=[step_of(1, age_s=4_000)])) == ["no_step"]
    failed = StepFailed(
        run_id="main", model="agent", step=2, attempt=1, batch_hash="b", batch_number=2, base_version=1,
        error_class="UnavailableError", message="art-server is away", final=True, failed_at_ms=NOW_MS,
    )  # fmt: skip
    picture = draw(steps=[step_of(1), failed])
    assert alarms(picture) == ["failed"]
    assert picture.problems[0].what == "step 2 of run main failed: UnavailableError: art-server is away"
    assert alarms(draw(steps=[step_of(1), failed, step_of(2)])) == []


def start_step(number: int, *, age_s: float) -> StepStarted:
    return StepStarted(
        run_id="main", model="agent", step=number, attempt=1, batch_hash="b", batch_number=number, base_version=1,
        started_at_ms=NOW_MS - round(age_s * 1000),
    )  # fmt: skip


def test_a_run_that_was_paused_or_stopped_owes_no_step_and_says_why() -> None:
    reason = "stopped by an operator; `rollbus run resume` continues it"
    trainer = make_beat("trainer", holds=("run main of agent",), standing=reason)
    picture = draw(trainer, steps=[step_of(1, age_s=4_000)])
    assert alarms(picture) == ["paused"]
    assert picture.problems[0].what == f"run main takes no batches: {reason}"
    other = make_beat("trainer", holds=("run other of small",), standing=reason)
    assert alarms(draw(other, steps=[step_of(1, age_s=4_000)])) == ["no_step"]


def test_a_run_without_traffic_is_reported_as_idle() -> None:
    picture = draw(make_beat("trainer"), steps=[step_of(1, age_s=8_000)])
    assert alarms(add_traffic(picture, 0, LIMITS)) == ["no_step"]
    assert alarms(add_traffic(picture, NOW_MS - 60_000, LIMITS)) == ["no_step"]
    idle = add_traffic(picture, NOW_MS - 7_900_000, LIMITS)
    assert idle.problems[0].what == "no episode has begun for 2.2 h, so run main has nothing to train"


def test_a_step_is_owed_from_the_first_episode_after_a_time_without_traffic() -> None:
    trainer = make_beat("trainer", holds=("run main of agent",))
    picture = draw(trainer, steps=[step_of(1, age_s=40_000)])
    morning = add_traffic(picture, NOW_MS - 1_000, LIMITS, {"main": NOW_MS - 600_000})
    assert (alarms(morning), morning.verdict) == ([], "every process works")
    assert alarms(add_traffic(picture, NOW_MS - 1_000, LIMITS, {"main": NOW_MS - 3_700_000})) == ["no_step"]
    assert alarms(add_traffic(picture, NOW_MS - 1_000, LIMITS, {"other": NOW_MS - 600_000})) == ["no_step"]


def test_a_long_update_is_named_and_its_processes_work() -> None:
    holds = {"trainer": ("run main of agent",), "art-server": ("agent",)}
    busy = [make_beat(kind, waiting_since_ms=NOW_MS - 901_000, holds=name) for kind, name in holds.items()]
    picture = draw(*busy, steps=[start_step(1, age_s=900)])
    assert [process.state for process in picture.processes] == ["working", "working"]
    assert [problem.what for problem in picture.problems] == [
        "step 1 of run main has been training for 15 min; it is the first"
    ]
    usual = replace(step_of(1), started_at_ms=NOW_MS - 860_000)
    assert draw(*busy, steps=[usual, start_step(2, age_s=900)]).problems == ()
    assert alarms(draw(*busy)) == ["waiting", "waiting"]


def test_an_open_step_whose_trainer_is_gone_is_not_being_trained() -> None:
    steps, hour_old = (
        [step_of(1, age_s=901), start_step(2, age_s=900)],
        [step_of(1, age_s=4_000), start_step(2, age_s=3_900)],
    )
    killed = make_beat("trainer", age_s=890, holds=("run main of agent",))
    assert alarms(draw(killed, make_beat(), steps=steps)) == ["silence"]
    assert alarms(draw(killed, make_beat(), steps=hour_old)) == ["silence", "no_step"]
    other = make_beat("trainer", holds=("run other of small",))
    assert alarms(draw(other, steps=hour_old)) == ["no_step"]


def test_beats_from_before_a_clock_was_set_back_do_not_count() -> None:
    picture = draw(make_beat(age_s=-3_600.0), make_beat("sink"))
    (problem,) = picture.problems
    assert problem.what.startswith("worker 7 on here has not beaten since the broker's clock was set back by 60 min")
    assert draw(make_beat(age_s=-0.5)).problems == ()


def test_an_open_step_is_shown_with_its_age() -> None:
    started_step = StepStarted(
        run_id="main", model="agent", step=2, attempt=1, batch_hash="b", batch_number=2, base_version=1,
        started_at_ms=NOW_MS - 30_000,
    )  # fmt: skip
    (run,) = draw(steps=[step_of(1), started_step]).runs
    assert (run.step, run.open_step, run.open_age_ms) == (1, 2, 30_000)


def test_a_reward_that_falls_is_a_problem() -> None:
    steps: list[StepRecord] = [step_of(n, reward=0.8) for n in range(1, 21)]
    picture = draw(steps=[*steps, *(step_of(n, reward=0.3) for n in range(21, 26))])
    assert alarms(picture) == ["reward"]
    assert picture.problems[0].what == "the mean reward of run main fell by 0.500 to 0.300"


def test_a_window_without_signal_is_a_problem_before_the_first_step_too() -> None:
    def window(admitted: int, rejected: int = 0) -> dict[str, CurriculumState]:
        names = tuple(f"g{number}" for number in range(20))
        state = CurriculumState(
            run_id="main", window=3, mode="off", percentile=1.0, last_expansion_window=-1, seen_group_ids=names,
            admitted_group_ids=names[:admitted], rejected_group_ids=names[admitted : admitted + rejected],
            closed_at_ms=NOW_MS,
        )  # fmt: skip
        return {"main": state}

    picture = draw(windows=window(1))
    assert alarms(picture) == ["no_signal"]
    assert picture.problems[0].what == "95% of the groups in the newest window of run main are without a signal"
    assert alarms(draw(windows=window(1, rejected=10))) == []
    assert draw(windows=window(5), steps=[step_of(1)]).runs[0].no_signal_share == 0.75


def test_dead_letters_are_a_problem_while_they_are_new() -> None:
    assert alarms(draw(dead_letters=3, newest_dead_letter_ms=NOW_MS - 5_000)) == ["dead_letters"]
    assert alarms(draw(dead_letters=3, newest_dead_letter_ms=NOW_MS - 4_000_000)) == []


def test_an_alarm_without_a_limit_is_off() -> None:
    off = AlarmLimits(no_step_s=None, waiting_s=None)
    assert draw(make_beat(waiting_since_ms=1), limits=off, steps=[step_of(1, age_s=9_999)]).problems == ()


@pytest.mark.parametrize("hours", [25.0, 1000.0])
def test_a_process_that_died_long_ago_is_not_shown(hours: float) -> None:
    assert draw(make_beat(age_s=hours * 3600)).processes == ()


def test_a_process_of_a_newer_release_is_named_and_not_taken_for_dead() -> None:
    picture = draw(unread_beats={"worker@there:8-1": NOW_MS - 5_000, "worker@there:7-1": NOW_MS - 90_000})
    (problem,) = picture.problems
    assert (problem.subject, problem.alarm) == ("worker@there:8-1", "trouble")
    assert "it is newer" in problem.what


def test_work_per_second_is_between_the_two_newest_beats() -> None:
    beat = make_beat(work=150)
    before = replace(beat.heartbeat, work=100, beat_at_ms=beat.heartbeat.beat_at_ms - 5_000)
    assert draw(replace(beat, previous=before)).processes[0].work_per_s == 10.0
    assert draw(beat).processes[0].work_per_s is None
    assert draw(replace(beat, previous=replace(before, work=200))).processes[0].work_per_s is None


@pytest.mark.parametrize(("columns", "hidden"), [(80, ["host", "disk free"]), (160, [])])
def test_a_narrow_terminal_has_every_process_with_its_pid_and_state_whole(columns: int, hidden: list[str]) -> None:
    picture = draw(make_beat("art-server", holds=("agent",)), make_beat("trainer", holds=("run main of agent",)))
    console = Console(width=columns, file=StringIO())
    console.print(render(NamespaceStatus(picture, (), give_verdict(picture, ()))))
    output = cast(StringIO, console.file).getvalue()
    for kind in ("art-server", "trainer"):
        assert re.search(rf"^ *{kind} +7 .*working +1 s ", output, re.MULTILINE), output
    assert [name for name in ("host", "disk free") if name not in output] == hidden
