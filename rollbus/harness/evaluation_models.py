"""What an evaluation run is asked, and what it gives: the inputs and outputs of `TrajectoryBuilder.run_eval`."""

from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class EvalInputItem(BaseModel):
    """One example, and what the workflow made of it."""

    id: Any
    input_obj: Any
    expected_output_obj: Any = None
    output_obj: Any = None
    expected_trajectory: list[Any] = Field(default_factory=list)
    trajectory: list[Any] = Field(default_factory=list)
    """Intermediate steps: an `IntermediateStep` each."""
    full_dataset_entry: Any = None


class EvalInput(BaseModel):
    """Everything an evaluator is given."""

    eval_input_items: list[EvalInputItem]


class EvalOutputItem(BaseModel):
    """One example's score."""

    model_config = ConfigDict(extra="allow")

    id: Any
    score: Any
    """A number; None where the evaluator cannot say, which is not 0."""
    reasoning: Any = None
    error: str | None = None


def number_of(value: Any) -> float | None:
    """Return a score as a number, or None if it is not finite."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if isfinite(found) else None


def worth_of(item: EvalOutputItem) -> float | None:
    """Return an example's score and the rewards of its steps, as one number; None where there is none."""
    shaped = getattr(item, "shaped_rewards", None) or ()
    if not isinstance(shaped, list | tuple):
        return None
    parts = [number_of(value) for value in (item.score, *shaped)]
    return None if None in parts else sum(part for part in parts if part is not None)


class EvalOutput(BaseModel):
    """One evaluator's scores."""

    average_score: Any
    eval_output_items: list[EvalOutputItem]


class EvaluationRunConfig(BaseModel):
    """One evaluation of a workflow on a dataset."""

    config_file: Path | BaseModel
    dataset: str | None = None
    result_json_path: str = "$"
    skip_workflow: bool = False
    skip_completed_entries: bool = False
    endpoint: str | None = None
    endpoint_timeout: int = 300
    reps: int = 1
    override: tuple[tuple[str, str], ...] = ()
    write_output: bool = True
    adjust_dataset_size: bool = False
    num_passes: int = 0
    export_timeout: float = 60.0


class EvaluationRunOutput(BaseModel):
    """What an evaluation run found."""

    workflow_output_file: Path | None = None
    evaluator_output_files: list[Path] = Field(default_factory=list)
    workflow_interrupted: bool = False
    eval_input: EvalInput
    evaluation_results: list[tuple[str, EvalOutput]] = Field(default_factory=list)
    """Evaluator name and its scores."""
    usage_stats: Any = None
    profiler_results: Any = None

    def scores(self, evaluator: str) -> dict[Any, EvalOutputItem] | None:
        """Return one evaluator's items by example id; None if there is no such evaluator."""
        found = next((output for name, output in self.evaluation_results if name == evaluator), None)
        return None if found is None else {item.id: item for item in found.eval_output_items}


class IntermediateStep(BaseModel):
    """One model or tool call of a workflow's run."""

    event_type: str
    """LLM_START, LLM_END, TOOL_START or TOOL_END."""
    name: str = ""
    """Model or tool."""
    function_name: str = "<workflow>"
    input: Any = None
    """The messages of an LLM_START, the arguments of a TOOL_START."""
    output: Any = None
    """The text of an LLM_END, the result of a TOOL_END."""
    logprobs: Any = None
    """Of an LLM_END: OpenAI's log-probs with the token ids added; pass it on as `EpisodeItem.logprobs`."""
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def payload(self) -> "IntermediateStep":
        """Return the step; the toolkit's is inside an envelope."""
        return self

    @property
    def data(self) -> "IntermediateStep":
        """Return what has `input`, `output` and `logprobs`."""
        return self

    @property
    def function_ancestry(self) -> "IntermediateStep":
        """Return what has `function_name`."""
        return self
