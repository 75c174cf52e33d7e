"""What would have helped a turn, for distillation: a member's hints name the turns, the log has the words. Pure.

A judge's own words are in the score. Where it wrote none, the hint is what the user said. A report's words are in the
newest revision of the trajectory's rewards, or in the trajectory, if it came before that was written. Words without a
report are the trajectory's own: the user's next message, or the error of a tool call. Words that retention removed are
no hint; the turn then learns from its reward alone.
"""

from dataclasses import replace

from rollbus.schemas.records.groups import GroupMember
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.trainer.loop.inspection import Inspected


def add_hints(
    inspected: Inspected, member: GroupMember, revision: RewardRevised | None = None, score: Score | None = None
) -> Inspected:
    """Return a payload with the words of its member's hints; `revision` and `score` are the records that it names."""
    if not member.hints:
        return inspected
    words_of_judge = {turn.turn_event_id: turn.hint for turn in (score.turn_rewards if score else ()) if turn.hint}
    rewards = (*inspected.payload.rewards, *(revision.rewards if revision is not None else ()))
    words_by_report = {reward.event_id: reward.comment or "" for reward in rewards}
    words_of_user = {
        turn_id: words_by_report.get(event_id, "") if event_id else _words_after(inspected.payload, turn_id)
        for turn_id, event_id in member.hints.items()
    }
    words = {turn_id: words_of_judge.get(turn_id) or words for turn_id, words in words_of_user.items()}
    return replace(inspected, hints={turn_id: hint for turn_id, hint in words.items() if hint.strip()})


def _words_after(payload: Trajectory, turn_id: str) -> str:
    """Return the user's message after a turn, else the error of a tool that it called."""
    index = next((index for index, turn in enumerate(payload.turns) if turn.event_id == turn_id), None)
    if index is None:
        return ""
    following = payload.turns[index + 1 : index + 2]
    replies = [message.content or "" for turn in following for message in turn.added_messages if message.role == "user"]
    calls = payload.turns[index].completion.tool_calls or ""
    errors = [tool.error for tool in payload.tools if tool.error and tool.tool_call_id and tool.tool_call_id in calls]
    return next(iter([*reversed(replies), *errors]), "")
