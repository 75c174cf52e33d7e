"""The logger that keeps its points in memory, for tests."""

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.records.steps import Evaluation, StepCompleted


class MemoryLogger:
    """Points by run and step, or by model and version."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.steps: dict[tuple[str, int], dict[str, float]] = {}
        self.evaluations: dict[tuple[str, int], dict[str, float]] = {}
        self.closed = False

    def log_step(self, record: StepCompleted) -> None:
        """Keep a step."""
        self.steps[record.run_id, record.step] = step_points(record)

    def log_evaluation(self, record: Evaluation) -> None:
        """Keep a measurement."""
        self.evaluations[record.run_id or record.model, record.policy_version] = evaluation_points(record)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
