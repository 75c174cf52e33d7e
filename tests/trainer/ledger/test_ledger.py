"""The ledger and the lineage: what the records of the log say about the next step."""

from typing import Any

import pytest

from rollbus.schemas.errors import DataLossError
from rollbus.schemas.records.steps import DroppedMember, StepCompleted, StepSkipped, StepStarted
from rollbus.trainer.ledger.ledger import AlreadyDone, Ledger, RunStep
from rollbus.trainer.ledger.lineage import Lineage
from tests.builders import START_MS, make_version
from tests.trainer.scenario import make_batch

BATCH = make_batch(0, [])
COMMON: dict[str, Any] = {"run_id": "main", "model": "agent", "batch_number": 0, "base_version": 0}


def started(step: int = 1, attempt: int = 1, **fields: Any) -> StepStarted:
    fields = COMMON | {"batch_hash": BATCH.batch_hash, "started_at_ms": START_MS} | fields
    return StepStarted(step=step, attempt=attempt, **fields)


def completed(step: int = 1, **fields: Any) -> StepCompleted:
    times = {"started_at_ms": START_MS, "completed_at_ms": START_MS}
    fields = COMMON | {"batch_hash": BATCH.batch_hash, "policy_version": 1, "trained": ()} | times | fields
    return StepCompleted(step=step, **fields)


def skipped(step: int, batch_hash: str) -> StepSkipped:
    times = {"started_at_ms": START_MS, "completed_at_ms": START_MS}
    stale = DroppedMember(trajectory_id="t", group_id="g", reason="stale")
    return StepSkipped(step=step, reason="nothing", dropped=(stale,), **COMMON | {"batch_hash": batch_hash} | times)


def ledger_of(*records: Any) -> Ledger:
    ledger = Ledger("main", "agent")
    for record in (make_version(0), *records):
        ledger.apply(record)
    return ledger


def lineage_of(*versions: Any) -> Lineage:
    lineage = Lineage()
    for version in versions:
        lineage.apply(version)
    return lineage


def test_the_batch_after_a_done_one_is_the_next_step() -> None:
    ledger = ledger_of(started(), completed(), make_version(1, 0))
    assert ledger.decide(BATCH) == AlreadyDone(1)
    assert ledger.decide(make_batch(1, [])) == RunStep(2, 1, 1, ask_journal=False)


def test_records_of_another_run_or_model_pass_by() -> None:
    ledger = ledger_of(started(run_id="other"), completed(7, run_id="other"), make_version(9, 0, model="another"))
    assert ledger.decide(BATCH) == RunStep(1, 1, 0, ask_journal=False)


def test_the_same_outcome_again_changes_nothing() -> None:
    ledger = ledger_of(started(), completed(), completed())
    assert (ledger.closed_steps, ledger.completed) == (1, 1)


def test_skipped_steps_in_a_row_are_counted_until_one_trains() -> None:
    ledger = ledger_of(skipped(1, "a"), skipped(2, "b"))
    assert (ledger.closed_steps, ledger.skipped_in_a_row) == (2, 2)
    assert ledger.skipped_reasons == {"stale": 2}
    ledger.apply(completed(3, batch_hash="c"))
    assert (ledger.skipped_in_a_row, ledger.skipped_reasons) == (0, {})


@pytest.mark.parametrize("records", [(completed(2),), (started(2),), (started(), completed(), started(3))])
def test_a_gap_in_the_steps_is_lost_data(records: tuple[Any, ...]) -> None:
    with pytest.raises(DataLossError, match="training-steps"):
        ledger_of(*records)


def test_the_next_attempt_at_an_open_step_asks_the_journal() -> None:
    assert ledger_of(started(), started(attempt=2)).decide(BATCH) == RunStep(1, 3, 0, ask_journal=True)


def test_another_batch_than_the_open_steps_is_a_moved_offset() -> None:
    with pytest.raises(DataLossError, match="move it back"):
        ledger_of(started()).decide(make_batch(1, []))


def test_a_log_without_a_version_gives_no_base() -> None:
    with pytest.raises(DataLossError, match="has no base"):
        Ledger("main", "agent").decide(BATCH)


def test_lag_counts_completed_steps_along_parents_and_not_version_numbers() -> None:
    lineage = lineage_of(make_version(0), make_version(4, 0), make_version(9, 4))
    assert lineage.lags(9) == {9: 0, 4: 1, 0: 2}


def test_a_version_that_was_rolled_back_is_off_the_lineage() -> None:
    lineage = lineage_of(
        make_version(0),
        make_version(1, 0),
        make_version(2, 1),
        make_version(2, 1, state="rolled_back"),
        make_version(1, 0),
    )
    assert (lineage.head, lineage.serving) == (1, 1)
    lineage.apply(make_version(3, 1))
    assert lineage.head == 3
    assert lineage.lags(3) == {3: 0, 1: 1, 0: 2}


def test_a_rolled_back_version_in_quarantine_stays_off_the_lineage() -> None:
    lineage = lineage_of(
        make_version(0), make_version(1, 0, state="rolled_back"), make_version(1, 0, state="quarantined")
    )
    assert (lineage.head, lineage.states[1]) == (0, "rolled_back")


def test_promoting_an_older_version_serves_it_and_leaves_the_head() -> None:
    lineage = lineage_of(make_version(0), make_version(1, 0), make_version(2, 1, state="candidate"), make_version(1, 0))
    assert (lineage.head, lineage.serving) == (2, 1)


def test_a_version_among_its_own_ancestors_is_refused() -> None:
    lineage = lineage_of(make_version(1, 2), make_version(2, 1))
    with pytest.raises(DataLossError, match="own ancestor"):
        lineage.lags(2)
