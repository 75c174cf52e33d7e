"""The newest beat of an archive job → whether the archive falls behind retention, and whether something is lost.

An archive job runs now and then, and ends. Its last beat stays, so a job that no longer comes is noticed by it.
"""

from collections.abc import Iterable, Sequence

from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem, say_duration
from rollbus.runtime.health.alarms.processes import Beat

ARCHIVED_TO_MS, KEPT_MS = "archived_to_ms", "kept_ms"
"""Positions in the beat: the time to which all is archived, and how long Kafka keeps what is not."""
BEHIND_SHARE = 0.5
"""Of Kafka's retention: late enough that hourly jobs never reach it, and early enough to mend what stops them."""


def find_archive_problems(beats: Sequence[Beat], now_ms: int) -> Iterable[Problem]:
    """Yield what the newest archive job says is missing, and how far the archive is behind."""
    jobs = sorted((beat for beat in beats if beat.heartbeat.kind == "archive"), key=lambda beat: beat.taken_ms)
    if not jobs:
        return
    newest = jobs[-1].heartbeat
    if newest.trouble is not None:
        what = f"the last archive job: {newest.trouble}"
        remedy = "take damaged files from a copy; run the job more often than retention deletes"
        yield Problem("archive_missing", newest.host, what, f"{remedy}; {RUNBOOK}#archive-missing")
    reached = [beat.heartbeat.positions for beat in jobs if ARCHIVED_TO_MS in beat.heartbeat.positions]
    if not reached:
        return
    behind_ms, kept_ms = now_ms - max(job[ARCHIVED_TO_MS] for job in reached), reached[-1][KEPT_MS]
    if behind_ms > BEHIND_SHARE * kept_ms:
        what = f"the archive is {say_duration(behind_ms)} behind, and Kafka keeps records for {say_duration(kept_ms)}"
        remedy = f"`rollbus archive run`, and look at why its schedule no longer does that; {RUNBOOK}#archive-behind"
        yield Problem("archive_behind", newest.host, what, remedy)
