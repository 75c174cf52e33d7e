"""What each kind of work costs, in seconds: measured on a real broker by `calibrate`, or assumed of a data centre."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time unless a name says otherwise; of the worker where no other process is named."""

    step_s: Mapping[str, float]
    """Decoding, stepping and encoding, per input record of each stage: the stage code alone, timed in this process."""
    record_s: float
    """Fetching and sending, per input record."""
    transaction_s: float
    idle_share: float
    """Of a core, for polling, of a worker with all stages that has no work."""
    broker_record_s: float
    """Per record that is written, and read once."""
    broker_transaction_s: float
    marker_s: float
    """Of the broker, per partition that a transaction touches."""
    broker_idle_share: float
    """Of a broker's core, per idle worker."""
    client_record_s: float
    """Of the producers, per event; counts only where they share the machine."""
    commit_wait_s: float
    """By the wall, of a transaction: what nobody works in."""
    hand_over_s: float
    """By the wall, from a record's commit until the next stage has it."""
    open_s: float
    """To open a partition without state."""
    restore_row_s: float
    """To read one row of a changelog and apply it."""


@dataclass(frozen=True, slots=True)
class DataCentre:
    """What cannot be measured on one machine: assumptions, printed with the results."""

    round_trip_s: float = 0.0005
    """Between two machines of one region."""
    disk_bytes_per_s: float = 250e6
    """Sequential writes that a broker's disk sustains."""
    network_bytes_per_s: float = 1.25e9
    """10 Gbit/s."""
    compression: float = 3.0
    """Of real text by zstd."""
    broker_cores: int = 4
    replicas: int = 3


ROUND_TRIPS = 5
"""Of a transaction, one after the other: partitions added, rows, offsets added, offsets, the end."""
