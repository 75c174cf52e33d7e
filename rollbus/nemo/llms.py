"""The toolkit's models of a run: of one kind, for the trained model, and such that their answers are found again.

Entries under `llms` that speak OpenAI's protocol are read as `rollbus_openai`; the toolkit makes the framework's model.
Their calls are recorded beneath every framework (`RunRecording`). A call carries the toolkit's name of the function it
is made in, for `target_functions`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nat.builder.builder import Builder
from nat.builder.context import Context
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.cli.type_registry import GlobalTypeRegistry
from nat.data_models.config import Config
from nat.data_models.llm import LLMBaseConfig
from nat.llm.nim_llm import NIMModelConfig
from nat.llm.openai_llm import OpenAIModelConfig

from rollbus.nemo.components import RecordedOpenAIConfig
from rollbus.runtime.credentials import token_for

_SHARED_LLAMA_INDEX_FIELDS = (
    "model",
    "api_key",
    "api_base",
    "temperature",
    "max_tokens",
    "timeout",
    "max_retries",
    "additional_kwargs",
)
"""Fields that LlamaIndex's OpenAI and its OpenAILike both have."""


@asynccontextmanager
async def recorded_model(
    config: RecordedOpenAIConfig, builder: Builder, framework: LLMFrameworkEnum
) -> AsyncIterator[Any]:
    """Yield the model as the toolkit makes it for a framework, such that it takes any name and keeps answers' ids."""
    make = GlobalTypeRegistry.get().get_llm_client(OpenAIModelConfig, framework).build_fn
    async with make(config, builder) as model:
        if framework is LLMFrameworkEnum.LLAMA_INDEX:
            model = _with_any_name(model)
        elif framework is LLMFrameworkEnum.LANGCHAIN:
            _keep_ids_of_streams(getattr(model, "default", model))
        yield model


def _keep_ids_of_streams(model: Any) -> None:
    """Let a streamed answer keep the id by which it is found again, as a whole one does: LangChain leaves it out."""
    if (convert := getattr(model, "_convert_chunk_to_generation_chunk", None)) is None:
        return

    def convert_with_id(chunk: dict[str, Any], *arguments: Any) -> Any:
        generation = convert(chunk, *arguments)
        answer_id = (chunk.get("chunk") or chunk).get("id")
        if generation is not None and answer_id and "finish_reason" in (generation.generation_info or {}):
            generation.message.response_metadata["id"] = answer_id
        return generation

    object.__setattr__(model, convert.__name__, convert_with_id)  # the model's own assignment takes fields only


def _with_any_name(model: Any) -> Any:
    """Return LlamaIndex's model; OpenAILike on the same clients where its OpenAI class refuses the model's name."""
    try:
        _ = model.metadata  # raises for a model that is not OpenAI's
    except ValueError:
        from llama_index.llms.openai_like import OpenAILike

        parameters = {name: getattr(model, name) for name in _SHARED_LLAMA_INDEX_FIELDS}
        other = OpenAILike(**parameters, is_chat_model=True, is_function_calling_model=True)
        other._client, other._aclient = model._get_client(), model._get_aclient()
        return other
    return model


def active_function() -> str:
    """Return the toolkit's name of the function that is running."""
    return str(Context.get().active_function.function_name)


def with_recorded_models(config: Config, base_and_trained: "tuple[str, str] | None") -> Config:
    """Return the configuration with recorded models; `base_and_trained` names the base model and the trained one.

    Requests for the base model go to the trained one: the base would never improve.
    """
    llms: dict[str, LLMBaseConfig] = {}
    for name, llm in config.llms.items():
        if isinstance(llm, OpenAIModelConfig) or (isinstance(llm, NIMModelConfig) and llm.base_url):
            values = llm.model_dump(exclude={"type"}, exclude_unset=True)
            if llm.api_key is None and (token := token_for(llm.base_url)):
                values["api_key"] = token
            if base_and_trained is not None and llm.model_name == base_and_trained[0]:
                values["model_name"] = base_and_trained[1]
            llms[name] = RecordedOpenAIConfig.model_validate(values)
        else:
            llms[name] = llm
    return config.model_copy(update={"llms": llms})
