"""The part of a step that every stage shares: stream time passes, and a configuration is applied."""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.drops import DropReason, DropUnit
from rollbus.schemas.topics import Topic
from rollbus.streams.state.stage import Outgoing, make_drop
from rollbus.streams.state.stage_state import StageState, make_misplaced_error

S = TypeVar("S", bound=StageState[Any])


class ConfiguredStage(Generic[S]):
    """Takes in ticks and configurations; a stage adds what it does with its own records."""

    input: Topic
    configured_as: str
    """The stage that its configurations name."""
    run_id: str | None = None

    def step_control(self, state: S, record: Any) -> Iterable[Outgoing]:
        """Take in a tick or a configuration; raises InvalidRecordError for any other record."""
        if isinstance(record, Tick):
            return self.pass_time(state) if state.clock.observe(record) else ()
        if not isinstance(record, ConfigApplied):
            raise make_misplaced_error(record, self.input)
        if not self.is_configured_by(record):
            return ()
        state.config.apply(record)
        return self.follow_config(state)

    def is_configured_by(self, record: ConfigApplied) -> bool:
        """Say whether a configuration is meant for this stage and this run."""
        return record.stage == self.configured_as and record.run_id == self.run_id

    def pass_time(self, state: S) -> Iterable[Outgoing]:
        """Do what is due at the new stream time."""
        raise NotImplementedError

    def follow_config(self, state: S) -> Iterable[Outgoing]:
        """Do what follows from a new configuration: every deadline may be another."""
        state.watch_all()
        return ()


class RunStage(ConfiguredStage[S]):
    """A stage of one run, named `grouping.<run>`."""

    run_id: str

    def __init__(self, config: RunConfig) -> None:
        self.name = f"{self.configured_as}.{config.run_id}"
        self.run_id, self._config = config.run_id, config

    def drop(
        self, state: S, unit: DropUnit, unit_id: str, reason: DropReason, ids: tuple[str, ...], detail: str
    ) -> Outgoing:
        """Return the record that says why something of this run goes no further."""
        now_ms, stage = state.clock.now_ms, self.configured_as
        return make_drop(
            unit, unit_id, reason, detail, stage=stage, now_ms=now_ms, run_id=self.run_id, trajectory_ids=ids
        )
