"""The finetuning harness of the NeMo Agent Toolkit, as its users know it, on the bus.

A configuration and a dataset go in; trained weights, metrics and plots come out. Your classes implement the three
interfaces here and register themselves by name; `rollbus finetune` runs them.

In reading order: episodes, typed, finetune_config, evaluation_models, interfaces (what users write against); registry,
configuration, config_file, builder (from YAML to components); calling, llms, workflows, endpoint, evaluators, datasets,
recording, evaluation_run (running examples); bus, bus_kafka, bus_memory, run_view, run_log, transcripts, publishing
(the log); art_components, art_trajectory_builder, art_registration, art_trainer_adapter, art_trainer, curriculum,
troubles, outputs, plot (the toolkit's own components); candidates, dpo_components, dpo_trajectory_builder,
nemo_customizer_… (preferences); run_settings, processes, show, finetune (the command).
"""

from typing import TYPE_CHECKING

from rollbus.schemas.lazy import lazy_names

if TYPE_CHECKING:
    from rollbus.harness.builder import Builder
    from rollbus.harness.candidates import score_candidate
    from rollbus.harness.configuration import Configuration
    from rollbus.harness.episodes import (
        DPOItem,
        EpisodeItem,
        EpisodeItemRole,
        OpenAIMessage,
        TrainingJobRef,
        TrainingJobStatus,
        TrainingStatusEnum,
        Trajectory,
        TrajectoryCollection,
    )
    from rollbus.harness.evaluation_models import (
        EvalInput,
        EvalInputItem,
        EvalOutput,
        EvalOutputItem,
        EvaluationRunConfig,
        EvaluationRunOutput,
        IntermediateStep,
    )
    from rollbus.harness.evaluation_run import EvaluationRun
    from rollbus.harness.evaluators import BaseEvaluator, EvaluatorInfo
    from rollbus.harness.finetune_config import CurriculumLearningConfig, FinetuneConfig, FinetuneRunConfig
    from rollbus.harness.interfaces import Trainer, TrainerAdapter, TrajectoryBuilder
    from rollbus.harness.registry import (
        register_evaluator,
        register_function,
        register_llm,
        register_trainer,
        register_trainer_adapter,
        register_trajectory_builder,
    )
    from rollbus.harness.typed import (
        EvaluatorConfig,
        FunctionConfig,
        LLMConfig,
        RewardFunctionConfig,
        TrainerAdapterConfig,
        TrainerConfig,
        TrajectoryBuilderConfig,
    )

__all__ = [
    "BaseEvaluator",
    "Builder",
    "Configuration",
    "CurriculumLearningConfig",
    "DPOItem",
    "EpisodeItem",
    "EpisodeItemRole",
    "EvalInput",
    "EvalInputItem",
    "EvalOutput",
    "EvalOutputItem",
    "EvaluationRun",
    "EvaluationRunConfig",
    "EvaluationRunOutput",
    "EvaluatorConfig",
    "EvaluatorInfo",
    "FinetuneConfig",
    "FinetuneRunConfig",
    "FunctionConfig",
    "IntermediateStep",
    "LLMConfig",
    "OpenAIMessage",
    "RewardFunctionConfig",
    "Trainer",
    "TrainerAdapter",
    "TrainerAdapterConfig",
    "TrainerConfig",
    "TrainingJobRef",
    "TrainingJobStatus",
    "TrainingStatusEnum",
    "Trajectory",
    "TrajectoryBuilder",
    "TrajectoryBuilderConfig",
    "TrajectoryCollection",
    "register_evaluator",
    "register_function",
    "register_llm",
    "register_trainer",
    "register_trainer_adapter",
    "register_trajectory_builder",
    "score_candidate",
]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("BaseEvaluator", "EvaluatorInfo"), "evaluators"),
        **dict.fromkeys(("CurriculumLearningConfig", "FinetuneConfig", "FinetuneRunConfig"), "finetune_config"),
        **dict.fromkeys(("Trainer", "TrainerAdapter", "TrajectoryBuilder"), "interfaces"),
        **dict.fromkeys([name for name in __all__ if name.startswith("register_")], "registry"),
        "Builder": "builder",
        "Configuration": "configuration",
        "score_candidate": "candidates",
        "EvaluationRun": "evaluation_run",
        **dict.fromkeys(
            (
                *("DPOItem", "EpisodeItem", "EpisodeItemRole", "OpenAIMessage", "TrainingJobRef", "TrainingJobStatus"),
                *("TrainingStatusEnum", "Trajectory", "TrajectoryCollection"),
            ),
            "episodes",
        ),
        **dict.fromkeys(
            (
                *("EvalInput", "EvalInputItem", "EvalOutput", "EvalOutputItem", "EvaluationRunConfig"),
                *("EvaluationRunOutput", "IntermediateStep"),
            ),
            "evaluation_models",
        ),
        **dict.fromkeys(
            (
                *("EvaluatorConfig", "FunctionConfig", "LLMConfig", "RewardFunctionConfig", "TrainerAdapterConfig"),
                *("TrainerConfig", "TrajectoryBuilderConfig"),
            ),
            "typed",
        ),
    },
)
