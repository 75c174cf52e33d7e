"""One policy version and tickets whose sentences, things and styles traffic never has → how many it names rightly.

The tickets depend on the seed alone, and the most probable answer is taken, so either evaluation can be repeated. They
are asked for by version (`name@7`) and not recorded, so nothing here can end up in training.
"""

from collections.abc import Callable, Mapping

from openai import AsyncOpenAI

from rollbus.demo.routing.tasks import Task, look_up_in
from rollbus.demo.routing.tickets import Ticket
from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.validation.agents import EvaluationContext, EvaluationTask
from rollbus.trainer.validation.evaluation import build_evaluation
from rollbus.trainer.validation.playing import play_tasks
from rollbus.trainer.validation.settings import PlayLimits

NAME = "{task}-unseen"
TICKETS = 832
"""26 for each of the 32 sentences: ± 3 points on a rate."""
CONCURRENCY, TIMEOUT_S = 64, 600.0
"""On a busy machine 64 look-ups at a time take minutes."""
OUTCOMES = ("right", "wrong", "unreadable")


def unseen_tickets(task: Task, seed: int, count: int = TICKETS) -> tuple[Ticket, ...]:
    """Return the tickets of an evaluation."""
    return tuple(task.unseen.ticket(seed, number) for number in range(count))


async def evaluate(
    routed: Task,
    client: AsyncOpenAI,
    model: str,
    version: int,
    *,
    run: str,
    seed: int,
    count: int,
    now_ms: int,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Route the unseen tickets at `model@version`. The same evaluation has the same id whenever it is made."""
    tickets = unseen_tickets(routed, seed, count)
    look_up = look_up_in(routed.unseen, seed)

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Mapping[str, float]:
        ticket = tickets[task.index]
        chat = routed.messages(ticket.text)
        team = await routed.ask(client, context.model, chat, 0.0, look_up)
        actual_outcome = "unreadable" if team is None else "right" if team == ticket.team else "wrong"
        return {outcome: float(outcome == actual_outcome) for outcome in OUTCOMES}

    tasks = [EvaluationTask(number, ticket.order, 0, 0) for number, ticket in enumerate(tickets)]
    context = EvaluationContext(f"{model}@{version}", str(client.base_url))
    samples = await play_tasks(
        agent, tasks, context, limits=PlayLimits(concurrency=CONCURRENCY, timeout_s=TIMEOUT_S), progress=progress
    )
    return build_evaluation(
        samples,
        model=model,
        policy_version=version,
        name=NAME.format(task=routed.name),
        now_ms=now_ms,
        run_id=run,
        seed=seed,
        set_hash=content_hash([ticket.text for ticket in tickets]),
    )
