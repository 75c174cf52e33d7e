"""What the owner writes on the page: into a real Kafka, by the sink into ClickHouse, and back onto the page."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.local.process.ports import find_free_port
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.signing import Signing
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.replay.kafka.source import read_whole
from rollbus.streams.stages.assembly.rewards import TakenReport, standing
from rollbus.ui.actions import Commands
from rollbus.ui.page_questions import Asking
from rollbus.ui.page_reports import Acting
from rollbus.ui.sessions import PageJudge
from tests.services.clickhouse.sink_fixtures import create_topics, run_until_written, sink_settings
from tests.services.streams.fixtures import stream_settings

pytestmark = pytest.mark.services

settings = sink_settings


def member(trajectory: str, data_set: str = "gold", is_member: bool = True) -> dict[str, Any]:
    return {"data_set": data_set, "trajectory_id": trajectory, "episode_id": f"of {trajectory}", "is_member": is_member}


ANN, BOB = PageJudge("ann", is_owner=True), PageJudge("bob", is_owner=False)
KEYS = Signing.model_validate({"owner": "of the owner" * 4, "principals": "of principals" * 4})


async def test_verdicts_and_members_reach_the_tables_that_the_page_reads(settings: SinkSettings) -> None:
    await create_topics(settings)
    clock = iter(range(1_767_225_600_000, 1_767_225_700_000))
    acting = Acting(settings.kafka, settings.namespace, lambda: next(clock), signing=KEYS)
    given = {"episode_id": "e1", "value": 0.5, "name": "thumbs", "comment": "well done"}
    first = await acting.report(ANN, given)
    second = await acting.report(ANN, given | {"value": 1.0, "comment": None})
    of_another = await acting.report(BOB, given)
    for change in (member("t1"), member("t2"), member("t2", is_member=False), member("t3", "other")):
        await acting.change_member(change)
    await run_until_written(settings)
    rows = ask(
        settings.clickhouse,
        "SELECT event_id, episode_id, name, value, source, comment, supersedes FROM rewards FINAL ORDER BY occurred_at",
    ).rows
    assert rows == [
        (first, "e1", "thumbs", 0.5, "operator", "well done", None),
        (second, "e1", "thumbs", 1.0, "operator", None, first),
        (of_another, "e1", "thumbs", 0.5, "judge", "well done", None),
    ]
    asking = Asking(settings.clickhouse, settings.namespace)
    columns, sets = asking.ask("data_sets", {"trajectory": "t2"})
    assert columns == ["data_set", "members", "newest_change", "has_it"]
    assert sorted((name, members, has_it) for name, members, _, has_it in sets) == [("gold", 1, 0), ("other", 1, 0)]


async def test_each_judges_newest_verdict_is_in_force(settings: SinkSettings) -> None:
    await create_topics(settings)
    acting = Acting(settings.kafka, settings.namespace, signing=KEYS)
    for judge, value in (("ann", 0.0), ("bob", 0.5), ("ann", 1.0), ("cid", 0.25), ("cid", None)):
        await acting.report(PageJudge(judge, is_owner=judge != "bob"), {"episode_id": "e1", "value": value})
    topic = EPISODE_EVENTS.full_name(settings.namespace)
    stream = stream_settings(settings.kafka.bootstrap_servers, settings.namespace)
    async with aclosing(read_whole(stream, EPISODE_EVENTS)) as raws:
        taken = [(decode(raw.value), KEYS.signer_of(topic, raw)) async for raw in raws]
    reports = [TakenReport(report, at, signer or "") for at, (report, signer) in enumerate(taken)]
    assert [(reward.principal, reward.value) for reward in standing(reports)] == [("bob", 0.5), ("ann", 1.0)]


async def test_an_action_is_audited_with_its_person_and_reason(settings: SinkSettings, tmp_path: Path) -> None:
    await create_topics(settings)
    content = {
        "namespace": settings.namespace,
        "kafka": {"bootstrap_servers": settings.kafka.bootstrap_servers},
        "runs": [{"run_id": "main"}],
    }
    (tmp_path / "rollbus.yaml").write_text(yaml.safe_dump(content))
    commands = Commands(("--config", str(tmp_path / "rollbus.yaml")))
    given = {"action": "pause", "run": "main", "reason": "the loss rises"}
    preview = await commands.act("ann", given | {"is_preview": True})
    done = await commands.act("ann", given)
    assert preview["command"] == done["command"] == "rollbus run pause main '--comment=ann: the loss rises'"
    assert "pause is in the log of run main" in done["output"]
    await run_until_written(settings)
    columns, rows = Asking(settings.clickhouse, settings.namespace).ask("audit", {})
    (row,) = [dict(zip(columns, row, strict=True)) for row in rows]
    assert (row["what"], row["subject"], row["reason"]) == ("run pause", "main", "ann: the loss rises")


async def test_an_absent_kafka_is_named_without_a_claim_to_have_written() -> None:
    port = find_free_port()
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        await Acting(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"), "rollbus.").change_member(member("t1"))
