"""A run's funnel → a table for a terminal, its sentences below; the page draws the same."""

from rich.console import Group, RenderableType
from rich.text import Text

from rollbus.health.funnel.funnel import Funnel, FunnelStage
from rollbus.terminal.output import OutputTable


def render_funnel(funnel: Funnel) -> RenderableType:
    """Return the funnel, its line first."""
    head = Text.assemble((f"run {funnel.run_id}", "bold"), f" of {funnel.model}: ", (funnel.verdict, _style(funnel)))
    if funnel.trouble is not None or not any(stage.episodes for stage in funnel.stages):
        return Group(head, Text())
    table = OutputTable()
    for name in ("episodes of a day", "reached", "waiting", "lost"):
        table.add_column(name, justify="left" if name == "episodes of a day" else "right", no_wrap=True)
    table.add_column("why, and what to do")
    for number, stage in enumerate(funnel.stages):
        waiting_text, lost_text = (str(count or "") for count in (stage.waiting, stage.lost_episodes))
        table.add_row(stage.name, str(stage.episodes), waiting_text if number else "", lost_text, _explain(stage))
    parts: list[RenderableType] = [head, table]
    if funnel.unassembled is not None:
        parts.append(Text(funnel.unassembled.sentence))
    if funnel.next_turns:
        parts.append(Text(funnel.next_turns))
    parts += [Text.assemble(("! ", "yellow"), f"{notice.what} → {notice.remedy}") for notice in funnel.notices]
    return Group(*parts, Text())


def _style(funnel: Funnel) -> str:
    if funnel.is_blocked:
        return "red"
    return "yellow" if funnel.trouble is not None else "green"


def _explain(stage: FunnelStage) -> Text:
    return Text("\n").join(Text(f"{loss.episodes} {loss.what} → {loss.remedy}") for loss in stage.lost)
