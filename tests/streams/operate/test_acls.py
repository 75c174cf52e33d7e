"""What each role may do on the broker: all that it needs, and nothing of the others'."""

from dataclasses import dataclass

import pytest

from rollbus.cli.commands.streams import topics
from rollbus.schemas.topics import EPISODE_EVENTS, TOPICS, Topic
from rollbus.streams.operate.acls import REPLAY_PREFIX, ROLES, Acl, Role, acls


@dataclass
class Named:
    name: str
    input: Topic


STAGES = [Named("assembly", EPISODE_EVENTS)]


def topics_of(role: Role, operation: str) -> set[str]:
    return {a.name for a in acls(role, "n.", STAGES) if a.resource == "topic" and operation in a.operations}


def test_a_producer_writes_its_topics_and_reads_nothing() -> None:
    """Not even who serves: with it comes the key of the canary's draw."""
    assert topics_of("producer", "Write") == {"n.episode-events", "n.aliases", "n.producer-reports"}
    assert topics_of("producer", "Read") == set()
    assert topics_of("proxy", "Read") == {"n.policy-decisions"}


def test_a_worker_owns_its_changelogs_groups_and_transactions() -> None:
    assert {"n.assembly.changelog", "n.ticker.changelog", "n.trajectories", "n.drops"} <= topics_of("worker", "Write")
    permissions = acls("worker", "n.", STAGES)
    assert Acl("group", "n.assembly", ("Read",)) in permissions
    assert Acl("transactional-id", "n.assembly.", ("Describe", "Write"), "prefixed") in permissions


def test_only_the_trainer_writes_steps() -> None:
    assert [role for role in ROLES if "n.training-steps" in topics_of(role, "Write")] == ["trainer"]


def test_the_trainer_reads_all_that_it_follows() -> None:
    """Batches, payload, exclusions; an operator's pauses in the run log; evaluations that let a candidate through."""
    followed = {"batches", "trajectories", "scores", "run-log", "evaluations", "training-steps", "policy-versions"}
    assert {f"n.{name}" for name in followed} <= topics_of("trainer", "Read")


def test_the_sink_reads_every_topic_and_writes_only_heartbeats() -> None:
    assert topics_of("sink", "Read") == {topic.full_name("n.") for topic in TOPICS}
    assert topics_of("sink", "Write") == {"n.heartbeats"}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_gets_a_wildcard_or_a_name_outside_the_namespace(role: Role) -> None:
    permissions = acls(role, "n.", STAGES)
    replay_permissions = [acl for acl in permissions if acl.name == REPLAY_PREFIX]
    assert [acl.resource for acl in replay_permissions] == ["group", "topic"] * (role == "replay")
    assert all(acl.name.startswith("n.") and len(acl.name) > 2 for acl in permissions if acl not in replay_permissions)


def test_a_permission_is_printed_as_kafka_acls_takes_it() -> None:
    acl = Acl("group", "n.sink", ("Read",), "prefixed")
    assert acl.arguments() == "--operation Read --group 'n.sink' --resource-pattern-type prefixed"


def test_the_resampler_reads_requests_and_writes_as_a_producer() -> None:
    assert topics_of("resampler", "Read") == {"n.resample-requests"}
    assert topics_of("resampler", "Write") == topics_of("producer", "Write") | {"n.heartbeats"}
    assert "n.resample-agent." in {acl.name for acl in acls("resampler", "n.")}


def test_a_replay_reads_all_and_writes_what_is_its_own() -> None:
    assert topics_of("replay", "Write") == {"n.replays", "n.heartbeats", REPLAY_PREFIX}
    assert topics_of("replay", "Read") == {topic.full_name("n.") for topic in TOPICS} | {REPLAY_PREFIX}


def test_the_command_line_offers_every_role() -> None:
    assert topics.ROLES == ROLES


def test_no_producer_may_write_heartbeats() -> None:
    """A heartbeat that anybody writes hides the death of a process."""
    assert [role for role in ROLES if "n.heartbeats" in topics_of(role, "Write")] == [
        *("proxy", "worker", "trainer", "sink", "resampler", "replay", "operator")
    ]


def test_a_proxy_may_produce_read_the_serving_version_and_beat() -> None:
    assert set(acls("proxy", "n.")) - set(acls("producer", "n.")) == {
        Acl("topic", "n.heartbeats", ("Describe", "Write")),
        Acl("topic", "n.policy-decisions", ("Describe", "Read")),
    }
    assert set(acls("producer", "n.")) <= set(acls("proxy", "n."))


def test_an_operator_sees_the_lag_of_every_group_and_the_beats() -> None:
    groups = {acl.name for acl in acls("operator", "n.", STAGES) if acl.resource == "group"}
    assert groups == {"n.sink", "n.trainer.", "n.logger.", "n.resample-agent.", "n.assembly"}
    assert "n.heartbeats" in topics_of("operator", "Read")
    assert {topic.full_name("n.") for topic in TOPICS} <= topics_of("operator", "Describe")
