"""What `rollbus capture` hands to the processes of a program comes to them as it was."""

from pathlib import Path

from pydantic import SecretStr

from rollbus.producers.startup.plan import CapturePlan, read_plan, write_plan
from rollbus.runtime.kafka.connection import KafkaConnection


def test_a_password_with_spaces_around_it_reaches_the_processes(tmp_path: Path) -> None:
    connection = KafkaConnection(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", username="u", password=SecretStr(" p\r\n")
    )
    plan = CapturePlan(connection=connection, namespace="n.", producer="p", task="t")
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert read_plan(tmp_path).connection.client_options() == connection.client_options()
    assert " p" not in (tmp_path / "plan.json").read_text()
