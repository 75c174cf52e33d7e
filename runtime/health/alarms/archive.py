"""The newest beat of an archive job → whether the archive falls behind retention, and whether something is lost.

An archive job runs now and then, and ends. Its last beat stays, and grows old if no job comes any more.
"""

from collections.abc import Iterable, Sequence

from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem, say_duration
from rollbus.runtime.health.alarms.processes import Beat

ARCHIVED_TO_MS, KEPT_MS = "archived_to_ms", "kept_ms"
"""Positions in the beat: the time to which all is archived, and how long Kafka keeps what is not."""
BEHIND_SHARE = 0.5
"""Of Kafka's retention: late enough that hourly jobs never reach it, and early enough to mend what stops them."""


def find_archive_problems(beats: Sequence[Beat], now_ms: int) -> Iterable[Problem]:
    """Yield what the newest job that came to its end says is missing, and that the archive is too far behind.

    A job that failed is silent, with its cause. It may have archived nothing, so how far the archive has come is the
    furthest of all jobs, by the broker's clock and never later than the broker took what the job says.
    """
    archive_beats = sorted((beat for beat in beats if beat.heartbeat.kind == "archive"), key=lambda beat: beat.taken_ms)
    if not archive_beats:
        return
    newest = archive_beats[-1].heartbeat
    finished = next((beat.heartbeat for beat in reversed(archive_beats) if beat.heartbeat.is_last), None)
    if finished is not None and finished.trouble is not None:
        what = f"the last archive job: {finished.trouble}"
        remedy = "take damaged files from a copy; run the job more often than retention deletes"
        yield Problem("archive_missing", finished.host, what, f"{remedy}; {RUNBOOK}#archive-missing")
    successful_beats = [beat for beat in archive_beats if ARCHIVED_TO_MS in beat.heartbeat.positions]
    if not successful_beats:
        return
    behind_ms = now_ms - max(map(_archived_to_ms, successful_beats))
    kept_ms = successful_beats[-1].heartbeat.positions[KEPT_MS]
    if behind_ms > BEHIND_SHARE * kept_ms:
        what = f"the archive is {say_duration(behind_ms)} behind, and Kafka keeps records for {say_duration(kept_ms)}"
        remedy = f"`rollbus archive run`, and look at why its schedule no longer does that; {RUNBOOK}#archive-behind"
        yield Problem("archive_behind", newest.host, what, remedy)


def _archived_to_ms(beat: Beat) -> int:
    """Return the time to which a job has archived all, by the broker's clock."""
    by_its_clock_ms, ahead_ms = beat.heartbeat.positions[ARCHIVED_TO_MS], beat.heartbeat.beat_at_ms - beat.taken_ms
    return min(by_its_clock_ms - ahead_ms, beat.taken_ms)
