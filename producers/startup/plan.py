"""What `rollbus capture` hands to the Python processes of a program, and what they report when they end.

Both are files of one folder that only its user may read: a password in a variable would be every child's.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr

from rollbus.producers.recorder import Recorder
from rollbus.producers.start import init
from rollbus.producers.turns.redaction import Field
from rollbus.runtime.files import write_whole
from rollbus.runtime.kafka.connection import KafkaConnection

FOLDER_VARIABLE = "ROLLBUS_CAPTURE"
_PLAN, _PASSWORD, _REPORTS = "plan.json", "password", "ended-*.json"


class CapturePlan(BaseModel):
    """How each process is to record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connection: KafkaConnection
    namespace: str
    producer: str
    task: str
    headers: Mapping[str, str] | None = None
    """Of the episode that the whole program is; without them, each run of a framework or else each call is one."""
    sample_rate: float = 1.0
    withhold: frozenset[Field] = frozenset()
    spool_folder: Path | None = None
    route: tuple[str, ...] = ()

    def make_recorder(self) -> Recorder:
        """Return a recorder of this process."""
        return init(
            security=self.connection,
            namespace=self.namespace,
            producer=self.producer,
            sample_rate=self.sample_rate,
            withhold=self.withhold,
            spool_folder=self.spool_folder,
            route=self.route,
        )


class ProcessReport(BaseModel):
    """What one process did and lost."""

    whole: bool = True
    """False in what a process leaves before its end, which may never come: at its first turn, and at SIGTERM."""

    counters: Mapping[str, int] = {}
    writer_ids: tuple[str, ...] = ()
    """Of its part of the program's episode."""
    failed: Mapping[str, str] = {}
    """Libraries that could not be patched, with the error."""
    waited_s: float = 0.0
    """How long its exit was held back for what it still had to send."""


def write_plan(folder: Path, plan: CapturePlan) -> None:
    """Write the plan, with the password in a file of its own."""
    connection = plan.connection
    if connection.password is not None:
        path = folder / _PASSWORD
        write_whole(path, connection.password.get_secret_value())
        connection = connection.model_copy(update={"password": None, "password_file": path})
    write_whole(folder / _PLAN, plan.model_copy(update={"connection": connection}).model_dump_json())


def read_plan(folder: Path) -> CapturePlan:
    """Return the plan, with the password letter by letter: of a file that a person has written, spaces are left out."""
    plan, path = CapturePlan.model_validate_json((folder / _PLAN).read_bytes()), folder / _PASSWORD
    if plan.connection.password_file != path:
        return plan
    password = SecretStr(path.read_bytes().decode())
    connection = plan.connection.model_copy(update={"password": password, "password_file": None})
    return plan.model_copy(update={"connection": connection})


def write_ended(folder: Path, ended: ProcessReport) -> None:
    """Leave a process's report in the place of an earlier one; none where the command has ended before."""
    write_whole(folder / _REPORTS.replace("*", str(os.getpid())), json.dumps(ended.model_dump()))


def read_ended(folder: Path) -> Iterator[ProcessReport]:
    """Yield the reports that are there."""
    for path in sorted(folder.glob(_REPORTS)):
        yield ProcessReport.model_validate_json(path.read_bytes())
