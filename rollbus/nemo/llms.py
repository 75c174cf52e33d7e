"""The toolkit's models with recorded OpenAI clients beneath them, so that the sampled ids are exact.

Entries under `llms` that speak OpenAI's protocol are read as `rollbus_openai`; the toolkit makes the framework's model,
and the clients in it are replaced by their recorded twins. A call carries the toolkit's name of the function it is made
in, for `target_functions`.
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
from rollbus.nemo.runs.run_recording import RECORDING, RunRecording
from rollbus.runtime.credentials import token_for

OF_LLAMA_INDEX = (
    "model",
    "api_key",
    "api_base",
    "temperature",
    "max_tokens",
    "timeout",
    "max_retries",
    "additional_kwargs",
)
"""Fields of LlamaIndex's OpenAI that are as well those of its OpenAILike."""


@asynccontextmanager
async def recorded_model(
    config: RecordedOpenAIConfig, builder: Builder, framework: LLMFrameworkEnum
) -> AsyncIterator[Any]:
    """Yield the model as the toolkit makes it for a framework; recorded while a run is recorded."""
    make = GlobalTypeRegistry.get().get_llm_client(OpenAIModelConfig, framework).build_fn
    async with make(config, builder) as model:
        recording = RECORDING.get()
        if framework is LLMFrameworkEnum.LLAMA_INDEX:
            yield _recorded_llama_index(model, recording)
            return
        if recording is not None and framework is LLMFrameworkEnum.LANGCHAIN:
            from rollbus.producers.integrations.langchain import record_clients

            chat_model = getattr(model, "default", model)
            record_clients(chat_model, recording.recorder, function=active_function)
            _keep_ids_of_streams(chat_model)
        yield model


def _keep_ids_of_streams(model: Any) -> None:
    """Let a streamed answer keep the id by which it is found again, as a whole one does: LangChain leaves it out."""
    if (convert := getattr(model, "_convert_chunk_to_generation_chunk", None)) is None:
        return

    def convert_with_id(chunk: dict[str, Any], *more: Any) -> Any:
        generation = convert(chunk, *more)
        answer_id = (chunk.get("chunk") or chunk).get("id")
        if generation is not None and answer_id and "finish_reason" in (generation.generation_info or {}):
            generation.message.response_metadata["id"] = answer_id
        return generation

    object.__setattr__(model, convert.__name__, convert_with_id)  # no field of the model


def _recorded_llama_index(model: Any, recording: RunRecording | None) -> Any:
    """Return LlamaIndex's model; its OpenAI class knows OpenAI's own models alone, so another's is made OpenAILike."""
    client, async_client = model._get_client(), model._get_aclient()
    try:
        _ = model.metadata
    except ValueError:
        from llama_index.llms.openai_like import OpenAILike

        parameters = {name: getattr(model, name) for name in OF_LLAMA_INDEX}
        model = OpenAILike(**parameters, is_chat_model=True, is_function_calling_model=True)
    if recording is not None:
        recording.record_tools()
        model._client = recording.recorder.wrap(client, function=active_function)
        model._aclient = recording.recorder.wrap(async_client, function=active_function)
    return model


def active_function() -> str:
    """Return the toolkit's name of the function that is running."""
    return str(Context.get().active_function.function_name)


def with_recorded_models(config: Config, trained_model: "tuple[str, str] | None") -> Config:
    """Return the configuration with recorded models; `trained_model` is the base model's name and the trained one's.

    Requests for the base model go to the trained one: the base would never improve.
    """
    llms: dict[str, LLMBaseConfig] = {}
    for name, llm in config.llms.items():
        if isinstance(llm, OpenAIModelConfig) or (isinstance(llm, NIMModelConfig) and llm.base_url):
            values = llm.model_dump(exclude={"type"}, exclude_unset=True)
            if llm.api_key is None and (token := token_for(llm.base_url)):
                values["api_key"] = token
            if trained_model is not None and llm.model_name == trained_model[0]:
                values["model_name"] = trained_model[1]
            llms[name] = RecordedOpenAIConfig.model_validate(values)
        else:
            llms[name] = llm
    return config.model_copy(update={"llms": llms})
