"""Our settings in ART's terms, for its own model service: what Unsloth, vLLM and the update are given.

Settings that ART's update does not have are refused, not left out.
"""

from typing import Any

from art import dev

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.backends.model_settings import ArtEngine, ModelOptions
from rollbus.trainer.backends.protocol import TrainConfig

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION_TARGETS = ALL_TARGETS[:4]
OURS = TrainConfig()
ARTS_OWN = ("max_grad_norm", "adam_beta1", "adam_beta2", "weight_decay")
"""ART's update sets these itself, so values other than our defaults are refused."""


def internal_config(options: ModelOptions, engine: ArtEngine) -> dev.InternalModelConfig:
    """What `art.TrainableModel` takes as its `_internal_config`."""
    config = dev.InternalModelConfig(
        init_args=dev.InitArgs(load_in_4bit=engine.quantisation == "4bit", load_in_8bit=engine.quantisation == "8bit"),
        engine_args=dev.EngineArgs(max_num_seqs=options.max_rows),
        trainer_args=dev.TrainerArgs(gradient_accumulation_steps=engine.gradient_accumulation),
    )
    if options.max_tokens is not None:
        config["init_args"]["max_seq_length"] = options.max_tokens
        config["engine_args"]["max_model_len"] = options.max_tokens
    if engine.gpu_memory_utilization is not None:
        config["engine_args"]["gpu_memory_utilization"] = engine.gpu_memory_utilization
    if engine.tensor_parallel_size is not None:
        config["engine_args"]["tensor_parallel_size"] = engine.tensor_parallel_size
    if options.logprobs_mode == "processed":
        # ART hands on to vLLM what it does not list.
        config["engine_args"]["logprobs_mode"] = "processed_logprobs"  # type: ignore[typeddict-unknown-key]
    if bool(engine.trainer_gpus) != bool(engine.inference_gpus) and engine.vllm_url is None:
        raise ConfigurationError("trainer_gpus and inference_gpus go together: name both, or neither for one GPU")
    if engine.trainer_gpus:
        config["trainer_gpu_ids"] = list(engine.trainer_gpus)
    if engine.inference_gpus:
        config["inference_gpu_ids"] = list(engine.inference_gpus)
    if engine.vllm_url is not None:
        config["vllm_runtime"] = {"mode": "external", "server_url": engine.vllm_url}
    return config


def lora_config(options: ModelOptions) -> dev.LoRAConfig | None:
    """What `art.TrainableModel` takes as its `lora_config`; None leaves ART's rank and targets."""
    if options.lora is None:
        return None
    targets = ATTENTION_TARGETS if options.lora.attention_only else ALL_TARGETS
    if not options.lora.alpha.is_integer():
        raise ConfigurationError(f"lora: alpha {options.lora.alpha:g}: ART's own service takes whole numbers")
    return dev.LoRAConfig(rank=options.lora.rank, alpha=int(options.lora.alpha), target_modules=list(targets))


def server_config(host: str, port: int, api_key: str | None) -> dev.OpenAIServerConfig:
    """Where ART's vLLM listens; port 0 lets ART choose."""
    arguments: dict[str, Any] = {"host": host}
    if port:
        arguments["port"] = port
    if api_key is not None:
        arguments["api_key"] = api_key
    return dev.OpenAIServerConfig(server_args=arguments)  # type: ignore[typeddict-item]


def update_arguments(config: TrainConfig, engine: ArtEngine) -> dict[str, Any]:
    """What `LocalBackend.train` takes. UnavailableError names what ART does not support: the batch is not at fault."""
    refused = [
        name
        for name, is_chosen in {
            f"loss: {config.loss}": config.loss not in ("cispo", "ppo"),
            f"importance_correction: {config.importance_correction}": config.importance_correction
            not in ("none", "token_truncate"),
            "kl_estimator: k3": bool(config.kl_coefficient) and config.kl_estimator == "k3",
            "behaviour_kl_coefficient": bool(config.behaviour_kl_coefficient),
            "entropy_bonus": bool(config.entropy_bonus),
            "distill": config.distill is not None,
            "importance_floor": bool(config.importance_floor),
            f"sequence_mask: {config.sequence_mask}": config.sequence_mask != "none",
            "off_policy_mask_threshold": config.off_policy_mask_threshold is not None,
            "aggregation: constant": config.aggregation == "constant",
            "dual_clip": config.loss == "ppo" and config.dual_clip not in (None, OURS.dual_clip),
            **{name: getattr(config, name) != getattr(OURS, name) for name in ARTS_OWN},
        }.items()
        if is_chosen
    ]
    if refused:
        raise UnavailableError(
            f"ART's own update does not know {', '.join(refused)}; take it out of `trainer: train:`, or train with "
            "the service of this project"
        )
    ppo = config.loss == "ppo"
    arguments: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "loss_fn": "ppo" if ppo else "cispo",
        "epsilon": config.epsilon if ppo else 1 - config.ratio_min,
        "epsilon_high": config.epsilon_high if ppo else config.ratio_max - 1,
        "importance_sampling_level": config.ratio_level,
        "kl_penalty_coef": config.kl_coefficient,
        "grad_accumulation_sequences": engine.gradient_accumulation,
    }
    if config.kl_coefficient and config.kl_reference_version:  # without it, the model without its adapter
        arguments["kl_penalty_reference_step"] = config.kl_reference_version
    if config.importance_correction == "token_truncate":
        arguments["truncated_importance_sampling"] = config.importance_cap
        arguments["precalculate_logprobs"] = True  # else ART has no proximal policy, and leaves the correction out
    return arguments
