"""Where each run stands, by its log."""

from rollbus.schemas.records.config import BatchingConfig, RunConfig
from rollbus.streams.operate.run_status import RunStatus, run_statuses
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from tests.builders import make_command, make_config, make_group, make_outcome, make_tick, make_version
from tests.stepper import Stepper


def test_repeated_records_are_counted_once_in_the_status_of_a_run() -> None:
    (batch,) = Stepper(CurriculumStage(RunConfig(batching=BatchingConfig(groups_per_step=1)))).feed(make_group("g"))
    records = [make_tick(0), make_group("g"), batch, make_outcome(batch, version=4), make_version(9)]
    statuses = run_statuses([("main", record) for record in records * 2])
    assert statuses == {"main": RunStatus("main", groups=1, batches=1, answered=1, newest_version=4)}


def test_the_last_command_says_the_state_of_its_run_alone() -> None:
    commands = [make_command("pause"), make_command("end_window", key="c2"), make_command("stop", run_id="other")]
    statuses = run_statuses([(command.run_id, command) for command in commands])
    assert {name: status.state for name, status in statuses.items()} == {"main": "paused", "other": "stopped"}
    assert run_statuses([("main", make_command(name, key=name)) for name in ("stop", "resume")])["main"] == RunStatus(
        "main"
    )


def test_a_run_that_is_back_in_the_settings_has_the_state_from_before_its_removal() -> None:
    applied, back = make_config("grouping", RunConfig()), make_config("curriculum", RunConfig())
    for command, state in (("pause", "paused"), ("stop", "stopped"), ("end_window", "running")):
        records = [applied, make_command(command), make_command("removed", key="gone"), make_group("g")]
        assert run_statuses([("main", record) for record in records])["main"].state == "removed"
        records += [back, make_command("removed", key="gone")]
        assert run_statuses([("main", record) for record in records])["main"].state == state
        records += [make_command("removed", key="again")]
        assert run_statuses([("main", record) for record in records])["main"].state == "removed"
