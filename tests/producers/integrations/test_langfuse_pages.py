"""Pages of Langfuse's newest API, in the types of its own client, become the same episode as its exports."""

import json
from typing import Any

from tests.producers.imports.formats.reading import Read
from tests.producers.imports.formats.test_langfuse import OBSERVATIONS, score

SUBJECTS = (
    {"kind": "trace", "id": "t-1"},
    {"kind": "observation", "id": "tell", "traceId": "t-1"},
    {"kind": "session", "id": "s-1"},
    {"kind": "experiment", "id": "run-1"},
)


def own_pages() -> list[Any]:
    """Pages of Langfuse's API, in the types of its own client: observations and scores of the newest versions."""
    from langfuse.api.commons.types.observation_v2 import ObservationV2
    from langfuse.api.core.pydantic_utilities import parse_obj_as
    from langfuse.api.observations.types import ObservationsV2Meta, ObservationsV2Response
    from langfuse.api.scores_v3.types import ScoreV3_Numeric

    flat = [
        {**row, "userId": "ann", "sessionId": "s-1", "traceName": "refund", "tags": ["beta"]} for row in OBSERVATIONS
    ]
    rows = [parse_obj_as(ObservationV2, row) for row in flat]
    more = {"projectId": "p", "environment": "production", "updatedAt": "2026-03-02T08:00:00Z"}
    page = ObservationsV2Response(data=rows, meta=ObservationsV2Meta())
    scores = [
        parse_obj_as(ScoreV3_Numeric, {**score(f"v{n}", 0.5, **more, traceId=None), "subject": subject})
        for n, subject in enumerate(SUBJECTS)
    ]
    dumped = [json.loads(page_model.json()) for page_model in (page, *scores)]
    return [dumped[0], {"data": dumped[1:], "meta": {}}]


def test_pages_of_the_newest_api_become_the_same_episode() -> None:
    reading = Read("langfuse", own_pages())
    start = reading.started
    assert (start.task, start.agent, start.labels["user"], start.labels["tags"]) == (
        *("refund", "root", "ann", "beta"),
    )
    assert [turn.completion.content for turn in reading.turns] == [None, "It is in Berlin."]
    assert [tool.result for tool in reading.tools] == ["in Berlin"]
    assert [(reward.value, reward.turn_event_id is not None) for reward in reading.rewards] == [
        (0.5, False),
        (0.5, True),
    ]
