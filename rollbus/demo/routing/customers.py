"""The demo's production traffic, from outside: customers write tickets in bursts, and their verdicts come later.

A verdict is a colleague's. It goes into the desk's book as the team to which the ticket really belongs, and to rollbus
as feedback by the order's number, which says whether the agent named that team. The colleague errs at a stated rate,
some verdicts never come, and some are taken back. What a ticket gets depends on the seed and its number alone.

Run as `python -m rollbus.demo.routing.customers SETTINGS_AS_JSON`. It ends after the last verdict, or at SIGTERM.
"""

import asyncio
import json
import logging
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

import rollbus.producers
from rollbus.demo.pace import read_rate
from rollbus.demo.routing.tasks import TASKS
from rollbus.demo.routing.tickets import TEAMS, Ticket
from rollbus.demo.traffic import bring
from rollbus.producers import Recorder
from rollbus.terminal.log_lines import log_to_stderr

logger = logging.getLogger(__name__)

WRONG_SHARE = 0.1
"""Share of the verdicts in which the colleague names a wrong team, and leaves it."""
SILENT_SHARE = 0.1
"""Share of the tickets that never get a verdict."""
TAKEN_BACK_SHARE = 0.05
"""Share of the verdicts that first name a wrong team, and the right one later."""
MAX_BURST = 8
"""Tickets that arrive together, at most."""
MEAN_DELAY_S, MAX_DELAY_S = 2.0, 4.0
"""Mean and longest wait for a verdict, and for the one after it; seconds here are days there."""
STOP_S, FLUSH_S = 4.0, 4.0
"""How long a stop waits for the verdicts that are due, and then for their sending. Together they stay below the 10 s
after which the demo kills the process."""


@dataclass(frozen=True, slots=True)
class CustomerSettings:
    """The settings of the customers' process."""

    desk_url: str
    bootstrap_servers: str
    namespace: str
    seed: int
    tickets: int
    rate_file: str
    """How many begin per second; read again before each burst."""
    task: str = "routing"


@dataclass(frozen=True, slots=True)
class ColleagueVerdict:
    """What a colleague says about one ticket."""

    teams: tuple[str, ...]
    """In the order in which they are named; the last one counts."""
    delay_s: float


def verdict_of(ticket: Ticket, seed: int) -> ColleagueVerdict | None:
    """Return what a colleague will say; None for nothing."""
    rng = random.Random(f"verdict:{seed}:{ticket.order}")
    other_teams = [team for team in TEAMS if team != ticket.team]
    wrong_team, delay_s = rng.choice(other_teams), min(rng.expovariate(1 / MEAN_DELAY_S), MAX_DELAY_S)
    kind_draw = rng.random()
    if rng.random() < SILENT_SHARE:
        return None
    if kind_draw < WRONG_SHARE:
        return ColleagueVerdict((wrong_team,), delay_s)
    is_taken_back = kind_draw < WRONG_SHARE + TAKEN_BACK_SHARE
    return ColleagueVerdict((wrong_team, ticket.team) if is_taken_back else (ticket.team,), delay_s)


class Customers:
    """Writes the tickets and reports the verdicts."""

    def __init__(self, settings: CustomerSettings, recorder: Recorder, desk: httpx.AsyncClient) -> None:
        self._settings, self._recorder, self._desk = settings, recorder, desk
        self._stopping = asyncio.Event()
        self._time_limit = asyncio.timeout(None)
        """On the whole of `run`; set by `stop`."""
        self.written = self.failed = 0
        """Tickets that the desk answered, and others."""

    def stop(self) -> None:
        """Write no more tickets; `run` returns once those that are written have their verdicts, or after STOP_S."""
        self._stopping.set()
        self._time_limit.reschedule(asyncio.get_running_loop().time() + STOP_S)

    async def run(self) -> None:
        """Write tickets until stopped, or until the number of tickets is reached."""
        settings, number = self._settings, 0
        traffic = TASKS[settings.task].traffic
        rng = random.Random(settings.seed)
        with suppress(TimeoutError):
            async with self._time_limit, asyncio.TaskGroup() as tickets:
                while number < settings.tickets and not self._stopping.is_set():
                    burst = min(rng.randint(1, MAX_BURST), settings.tickets - number)
                    for _ in range(burst):
                        tickets.create_task(self._write(traffic.ticket(settings.seed, number)))
                        number += 1
                    await self._pause(burst / read_rate(Path(settings.rate_file)))
        logger.info("customers are done: written=%d failed=%d of %d", self.written, self.failed, number)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _write(self, ticket: Ticket) -> None:
        try:
            answer = await self._desk.post("/tickets", json={"order": ticket.order, "text": ticket.text})
            answer.raise_for_status()
            self.written += 1
            if verdict := verdict_of(ticket, self._settings.seed):
                await self._report(ticket.order, answer.json()["team"], verdict)
        except httpx.HTTPError as error:  # the desk has recorded how its episode ended
            self.failed += 1
            logger.warning("ticket failed: order=%s %r", ticket.order, error)

    async def _report(self, order: str, answered_team: str | None, verdict: ColleagueVerdict) -> None:
        earlier_id: str | None = None
        for named_team in verdict.teams:
            await asyncio.sleep(verdict.delay_s)
            reward = float(answered_team == named_team)
            earlier_id = self._recorder.feedback(
                alias=order, reward=reward, key=f"{order}:{named_team}", supersedes=earlier_id
            )
            if named_team == verdict.teams[-1]:
                (await self._desk.put(f"/tickets/{order}/team", json={"team": named_team})).raise_for_status()


async def write_tickets(settings: CustomerSettings) -> None:
    """Connect, write tickets, and send what was reported."""
    recorder = rollbus.producers.init(
        bootstrap_servers=settings.bootstrap_servers, namespace=settings.namespace, producer="routing-customers"
    )
    async with httpx.AsyncClient(base_url=settings.desk_url, timeout=60, trust_env=False) as desk:
        await bring(Customers(settings, recorder, desk), recorder, flush_s=FLUSH_S)


if __name__ == "__main__":
    log_to_stderr()
    asyncio.run(write_tickets(CustomerSettings(**json.loads(sys.argv[1]))))
