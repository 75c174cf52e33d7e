"""Our settings in ART's terms, for its own model service: what Unsloth, vLLM and the update are given.

Settings that ART's update does not have are refused, not left out.
"""

from typing import Any

from art import dev

from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.backends.art_terms.update import find_unsupported, make_update_arguments
from rollbus.trainer.backends.model_settings import ArtEngine, ModelOptions
from rollbus.trainer.train_config import TrainConfig

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


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
    if not options.lora.alpha.is_integer():
        raise ConfigurationError(f"lora: alpha {options.lora.alpha:g}: ART's own service takes whole numbers")
    return dev.LoRAConfig(rank=options.lora.rank, alpha=int(options.lora.alpha), target_modules=list(TARGETS))


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
    if refused := find_unsupported(config):
        raise UnavailableError(
            f"ART's own update does not know {', '.join(refused)}; take it out of `trainer: train:`, or train with "
            "the service of this project"
        )
    return make_update_arguments(config) | {"grad_accumulation_sequences": engine.gradient_accumulation}
