"""The turns of a trajectory that a user or a tool answered, with what came next.

Within a trajectory the next message is in it. After its last turn the user speaks in another episode of the
conversation, or does something else; that comes as a report with a signal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollbus.schemas.records.trajectories import Reward, Trajectory, Turn, call_ids

TOOL_ERROR = "tool_error"
"""Signal of a turn whose tool call failed."""
SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class NextTurn:
    """One turn, and what came next."""

    turn_event_id: str
    signal: str
    """`reply`, another signal of a report, or `tool_error`."""
    question: str = ""
    """What the user said before the turn; empty if that is not known."""
    answer: str = ""
    words: str = ""
    """What the user said next; with `edit`, the answer as the user wants it."""
    event_id: str = ""
    """The report that says so; empty if the trajectory itself does."""


def next_turns(trajectory: Trajectory) -> Iterator[NextTurn]:
    """Yield the turns that were answered, in order, those of reports last."""
    turns = trajectory.turns
    failed_calls = {tool.tool_call_id for tool in trajectory.tools if tool.error is not None and tool.tool_call_id}
    for index, turn in enumerate(turns):
        if failed_calls and not failed_calls.isdisjoint(call_ids(turn)):
            yield _next_turn(turns, index, TOOL_ERROR)
    for index, following in enumerate(turns[1:]):
        replies = [message.content for message in following.added_messages if message.role == "user"]
        if replies:
            yield _next_turn(turns, index, "reply", replies[-1] or "")
    yield from _of_reports(trajectory)


def _of_reports(trajectory: Trajectory) -> Iterator[NextTurn]:
    turns = trajectory.turns
    index_by_id = {turn.event_id: index for index, turn in enumerate(turns)}
    last_id = turns[-1].event_id if turns else ""
    reports_by_turn: dict[str, list[Reward]] = {}
    for report in trajectory.rewards:
        if report.signal:
            reports_by_turn.setdefault(report.turn_event_id or last_id, []).append(report)
    for turn_event_id, reports in reports_by_turn.items():
        spoken = [report for report in reports if report.signal != SILENCE]
        for report in spoken or reports[-1:]:  # who speaks after all was not silent
            index = index_by_id.get(turn_event_id)
            words = report.comment or ""
            if index is None:
                yield NextTurn(turn_event_id, report.signal, words=words, event_id=report.event_id)
            else:
                yield _next_turn(turns, index, report.signal, words, report.event_id)


def _next_turn(turns: Sequence[Turn], index: int, signal: str, words: str = "", event_id: str = "") -> NextTurn:
    turn = turns[index]
    questions = (
        message.content or ""
        for earlier in reversed(turns[: index + 1])
        for message in reversed(earlier.added_messages)
        if message.role == "user"
    )
    return NextTurn(turn.event_id, signal, next(questions, ""), turn.completion.content or "", words, event_id)
