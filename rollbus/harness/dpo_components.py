"""DPO as the toolkit has it: a builder of preference pairs, an adapter to NeMo Customizer, and their trainer."""

from collections.abc import AsyncIterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rollbus.harness.builder import Builder
from rollbus.harness.candidates import STEP_NAME
from rollbus.harness.registry import register_trainer, register_trainer_adapter, register_trajectory_builder
from rollbus.harness.typed import TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig


class DPOTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="dpo_traj_builder"):
    """Runs the dataset once and pairs the candidates of each turn."""

    ttc_step_name: str = Field(default=STEP_NAME, description="Name under which candidates are recorded.")
    exhaustive_pairs: bool = Field(default=True, description="Every two candidates, or best and worst only.")
    min_score_diff: float = Field(default=0.0, ge=0, description="Least difference of a pair's scores.")
    max_pairs_per_turn: int | None = Field(default=None, ge=1, description="Those with the greatest difference.")
    reward_from_score_diff: bool = Field(default=True, description="Else the chosen one's score is the reward.")
    require_multiple_candidates: bool = Field(default=True, description="Else a turn with one counts as passed over.")


class NeMoCustomizerTrainerConfig(TrainerConfig, name="nemo_customizer_trainer"):
    """Collects once or several times, then submits one job."""

    num_runs: int = Field(default=1, ge=1, description="Passes over the dataset before the job.")
    continue_on_collection_error: bool = Field(
        default=False, description="Whether other passes continue after one fails."
    )
    deduplicate_pairs: bool = Field(default=True, description="Drop pairs that say the same again.")
    max_pairs: int | None = Field(default=None, ge=1, description="Most pairs of the job, chosen by chance.")
    wait_for_completion: bool = Field(default=True, description="Whether the run ends with the job.")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DPOSpecificHyperparameters(_Strict):
    """Of DPO alone."""

    ref_policy_kl_penalty: float = Field(default=0.1, ge=0)
    preference_loss_weight: float = Field(default=1.0, ge=0)
    preference_average_log_probs: bool = False
    sft_loss_weight: float = Field(default=0.0, ge=0)


class NeMoCustomizerHyperparameters(_Strict):
    """What NeMo Customizer is asked to train with."""

    training_type: Literal["sft", "dpo"] = "dpo"
    finetuning_type: Literal["lora", "all_weights"] = "all_weights"
    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=4, ge=1)
    learning_rate: float = Field(default=5e-5, gt=0)
    dpo: DPOSpecificHyperparameters = DPOSpecificHyperparameters()


class NIMDeploymentConfig(_Strict):
    """How the trained model is served, with `deploy_on_completion`."""

    image_name: str = "nvcr.io/nim/meta/llama-3.1-8b-instruct"
    image_tag: str = "latest"
    gpu: int = Field(default=1, ge=1)
    deployment_name: str | None = None
    description: str = "Fine-tuned model deployment"


class NeMoCustomizerTrainerAdapterConfig(TrainerAdapterConfig, name="nemo_customizer_trainer_adapter"):
    """A deployment of the NeMo microservices."""

    entity_host: str = Field(description="Address of entity store and customizer.")
    datastore_host: str = Field(description="Address of the data store, which holds the files.")
    hf_token: str = Field(default="", description="Token of the data store.")
    namespace: str = Field(description="Namespace of data sets and models.")
    dataset_name: str = Field(default="nat-dpo", description="Name of the data set; its files are replaced.")
    dataset_output_dir: str | None = Field(default=None, description="Where the files are kept here, too.")
    create_namespace_if_missing: bool = True
    customization_config: str = Field(description="Such as meta/llama-3.2-1b-instruct@v1.0.0+A100.")
    hyperparameters: NeMoCustomizerHyperparameters = NeMoCustomizerHyperparameters()
    use_full_message_history: bool = Field(default=False, description="Else the prompt is its last message's text.")
    deploy_on_completion: bool = False
    deployment_config: NIMDeploymentConfig = NIMDeploymentConfig()
    poll_interval_seconds: float = Field(default=30.0, gt=0)
    deployment_timeout_seconds: float = Field(default=1800.0, gt=0, description="Until the deployment must be ready.")

    @field_validator("entity_host", "datastore_host")
    @classmethod
    def _without_slash(cls, host: str) -> str:
        return host.rstrip("/")


@register_trajectory_builder(config_type=DPOTrajectoryBuilderConfig)
async def dpo_trajectory_builder(config: DPOTrajectoryBuilderConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the builder of pairs."""
    from rollbus.harness.dpo_trajectory_builder import DPOTrajectoryBuilder

    yield DPOTrajectoryBuilder(trajectory_builder_config=config)


@register_trainer(config_type=NeMoCustomizerTrainerConfig)
async def nemo_customizer_trainer(config: NeMoCustomizerTrainerConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the trainer of one job."""
    from rollbus.harness.nemo_customizer_trainer import NeMoCustomizerTrainer

    yield NeMoCustomizerTrainer(trainer_config=config)


@register_trainer_adapter(config_type=NeMoCustomizerTrainerAdapterConfig)
async def nemo_customizer_adapter(config: NeMoCustomizerTrainerAdapterConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the adapter to NeMo Customizer."""
    from rollbus.harness.nemo_customizer_adapter import NeMoCustomizerTrainerAdapter

    yield NeMoCustomizerTrainerAdapter(adapter_config=config)
