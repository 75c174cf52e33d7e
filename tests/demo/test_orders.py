"""The task with a tool: a ticket names an order, its state decides the team, and both turns are the model's."""

import json
from collections import Counter
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from rollbus.demo.routing import orders
from rollbus.demo.routing.orders import CALL_TOKENS, EXAMPLES, LOOK_UP, TRAFFIC, UNSEEN, messages
from rollbus.demo.routing.tasks import ORDERS, look_up_in
from rollbus.demo.routing.tickets import NO_ORDER, TEAMS


def test_a_ticket_names_its_order_and_nothing_that_gives_the_team_away() -> None:
    tickets = [TRAFFIC.ticket(0, number) for number in range(400)]
    assert all(ticket.order in ticket.text for ticket in tickets)
    assert len({ticket.order for ticket in tickets}) == 400
    teams_by_opening: dict[str, set[str]] = {}
    for ticket in tickets:
        teams_by_opening.setdefault(ticket.text.replace(ticket.order, ""), set()).add(ticket.team)
    assert Counter(len(teams) for teams in teams_by_opening.values()).most_common(1)[0][0] == len(TEAMS)


async def test_the_shop_knows_the_orders_of_its_own_tickets_alone() -> None:
    look_up, ticket = look_up_in(TRAFFIC, 3), TRAFFIC.ticket(3, 17)
    assert await look_up(ticket.order) == ticket.moment
    for other in ("", "17", "abcdef", "１２３４５６", f"{(int(ticket.order[:2]) - 9) % 90 + 10}0017"):
        assert await look_up(other) == NO_ORDER


async def test_the_shop_knows_the_orders_of_more_than_ten_thousand_tickets() -> None:
    look_up = look_up_in(TRAFFIC, 3)
    for number in (9_999, 10_000, 123_456):
        ticket = TRAFFIC.ticket(3, number)
        assert await look_up(ticket.order) == ticket.moment
    for other in (f"{ticket.order[:2]}0{ticket.order[2:]}", "1" * 5_000):
        assert await look_up(other) == NO_ORDER


def test_the_evaluation_shares_no_sentence_and_no_state_with_traffic() -> None:
    assert not set(TRAFFIC.openings) & set(UNSEEN.openings)
    example_states = {state for _, _, state, _ in EXAMPLES}
    for team in TEAMS:
        assert not set(TRAFFIC.states[team]) & (set(UNSEEN.states[team]) | example_states)
        assert not set(UNSEEN.states[team]) & example_states


def test_every_example_of_the_chat_is_a_look_up_and_then_a_team() -> None:
    roles = [message["role"] for message in messages("check 4711")]
    assert roles == ["system", *(4 * ["user", "assistant", "tool", "assistant"]), "user"]
    last = Counter(messages(TRAFFIC.ticket(0, number).text)[-2]["content"] for number in range(100))
    assert set(last) == set(TEAMS)


class Model:
    """Answers the first request with a call of these arguments, the second with a team; notes what it was asked."""

    def __init__(self, arguments: str | None, team: str) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answers = [self._call(arguments), {"content": team}]

    def client(self) -> AsyncOpenAI:
        transport = httpx.MockTransport(self._answer)
        return AsyncOpenAI(
            base_url="http://model/v1", api_key="none", http_client=httpx.AsyncClient(transport=transport)
        )

    @staticmethod
    def _call(arguments: str | None) -> dict[str, Any]:
        if arguments is None:
            return {"content": "account"}
        function = {"name": "look_up", "arguments": arguments}
        return {"content": None, "tool_calls": [{"id": "call_7", "type": "function", "function": function}]}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(json.loads(request.content))
        message = {"role": "assistant", **self._answers[len(self.requests) - 1]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "agent", "choices": [choice]}
        return httpx.Response(200, json=body)


async def test_the_agent_looks_the_order_up_and_hands_its_state_to_the_model() -> None:
    ticket = TRAFFIC.ticket(0, 5)
    model = Model(json.dumps({"order": ticket.order}), ticket.team)
    chat = ORDERS.messages(ticket.text)
    assert await ORDERS.ask(model.client(), "agent", chat, 0.7, look_up_in(TRAFFIC, 0)) == ticket.team
    first, second = model.requests
    assert first["messages"] == json.loads(json.dumps(chat))
    assert first["tools"] == second["tools"] == [LOOK_UP]
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "call_7", "content": ticket.moment}
    assert first["max_completion_tokens"] == CALL_TOKENS


async def test_an_answer_without_a_call_names_no_team() -> None:
    model = Model(None, "account")
    assert await orders.ask(model.client(), "agent", [], 0.7, look_up_in(TRAFFIC, 0)) is None
    assert len(model.requests) == 1


@pytest.mark.parametrize("arguments", ['{"order": 17}', '{"number": "1"}', "[1]", '"x"', "{"])
async def test_a_call_with_wrong_arguments_finds_no_order(arguments: str) -> None:
    model = Model(arguments, "return")
    assert await orders.ask(model.client(), "agent", [], 0.7, look_up_in(TRAFFIC, 0)) == "return"
    assert model.requests[1]["messages"][-1]["content"] == NO_ORDER
