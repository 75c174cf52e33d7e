"""Entries under `llms` → clients of OpenAI-compatible endpoints, as each framework takes them, recorded.

The OpenAI client is what is recorded; a framework's model object is made around it.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, SecretStr

from rollbus.harness.builder import Builder
from rollbus.harness.registry import register_llm
from rollbus.harness.typed import LLMConfig
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

logger = logging.getLogger(__name__)

OURS = {"self", "messages", "model", "stream", "stream_options"}
"""Parameters of a request that no configuration sets."""


class OpenAIModelConfig(LLMConfig, name="openai"):
    """A model behind an OpenAI-compatible endpoint."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model_name: str = Field(alias="model_name", description="Name that requests carry.")
    base_url: str | None = Field(default=None, description="Endpoint, ending in /v1.")
    api_key: str | None = Field(default=None, description="Its key.")
    temperature: float | None = Field(default=None, description="Of sampling.")
    top_p: float | None = Field(default=None, description="Of sampling.")
    max_tokens: int | None = Field(default=None, gt=0, description="Longest answer.")
    seed: int | None = Field(default=None, description="Of sampling.")
    max_retries: int = Field(default=10, ge=0, description="Of a failed request.")
    request_timeout: float | None = Field(default=None, gt=0, description="Seconds.")


class NIMModelConfig(OpenAIModelConfig, name="nim"):
    """A NIM speaks the same protocol."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to ask: what the workflow of type `python` is given as `llm`."""

    client: "AsyncOpenAI"
    sync_client: "OpenAI"
    name: str
    """What requests carry as `model`."""
    sampling: dict[str, Any]
    """`temperature`, `max_tokens` and so on, as configured."""
    base_url: str | None
    api_key: str

    async def chat(self, messages: list[Any], **options: Any) -> Any:
        """Ask once and return the OpenAI completion."""
        return await self.client.chat.completions.create(
            model=self.name, messages=messages, **{**self.sampling, **options}
        )


@register_llm(config_type=OpenAIModelConfig)
async def openai_model(config: OpenAIModelConfig, builder: Builder) -> AsyncIterator[Model]:
    """Yield the model, its clients recorded."""
    from openai import AsyncOpenAI, OpenAI

    options: dict[str, Any] = {"base_url": config.base_url, "max_retries": config.max_retries}
    options["api_key"] = config.api_key or "none"
    if config.request_timeout is not None:
        options["timeout"] = config.request_timeout
    client, sync_client = AsyncOpenAI(**options), OpenAI(**options)
    wrap: Callable[[Any], Any] = builder.recording.recorder.wrap if builder.recording else lambda plain: plain
    asked, trained = config.model_name, builder.trained
    name = asked if trained is None else trained.name_for(asked)
    sampling = _sampling(config)
    try:
        yield Model(wrap(client), wrap(sync_client), name, sampling, config.base_url, options["api_key"])
    finally:
        await client.close()
        sync_client.close()


register_llm(config_type=NIMModelConfig)(openai_model)


def _sampling(config: OpenAIModelConfig) -> dict[str, Any]:
    """Return what goes into every request: the known settings, and others that requests have, such as `stop`."""
    from openai.resources.chat.completions import AsyncCompletions

    known = inspect.signature(AsyncCompletions.create).parameters.keys() - OURS
    chosen = ("temperature", "top_p", "max_tokens", "seed")
    others = {**(config.model_extra or {})}
    for name in sorted(others.keys() - known):
        logger.warning("llms: %r is not a parameter of a chat completion; it is ignored", name)
    given = {**{key: getattr(config, key) for key in chosen}, **{key: others[key] for key in others if key in known}}
    return {key: value for key, value in given.items() if value is not None}


def as_framework(model: Model, wrapper_type: str) -> Any:
    """Return the model as a framework takes it; raises ConfigurationError for one that is not known."""
    known = {"openai": lambda one: one, "langchain": _langchain, "llama_index": _llama_index, "adk": _adk}
    if wrapper_type not in known:
        raise ConfigurationError(f"no wrapper {wrapper_type!r} for models; there are {', '.join(known)}")
    return known[wrapper_type](model)


def _langchain(model: Model) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=model.name,
        base_url=model.base_url,
        api_key=SecretStr(model.api_key),
        root_async_client=model.client,
        root_client=model.sync_client,
        async_client=model.client.chat.completions,
        client=model.sync_client.chat.completions,
        **model.sampling,
    )


def _llama_index(model: Model) -> Any:
    from llama_index.llms.openai import OpenAI

    return _LlamaIndexModel.of(OpenAI, model)


def _adk(model: Model) -> Any:
    from google.adk.models.lite_llm import LiteLlm

    return LiteLlm(
        model=f"openai/{model.name}",
        api_base=model.base_url,
        api_key=model.api_key,
        client=model.client,
        **model.sampling,
    )


class _LlamaIndexModel:
    """LlamaIndex asks its catalogue how long a model's context is; ours is in none."""

    CONTEXT_TOKENS = 32_768

    @classmethod
    def of(cls, base: Any, model: Model) -> Any:
        from llama_index.core.llms import LLMMetadata

        metadata = LLMMetadata(
            context_window=cls.CONTEXT_TOKENS,
            num_output=model.sampling.get("max_tokens") or -1,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=model.name,
        )
        made_class = type("RecordedOpenAI", (base,), {"metadata": property(lambda self: metadata)})
        own = ("temperature", "max_tokens")
        options: dict[str, Any] = {key: value for key, value in model.sampling.items() if key in own}
        options["additional_kwargs"] = {key: value for key, value in model.sampling.items() if key not in own}
        made = made_class(model=model.name, api_base=model.base_url, api_key=model.api_key, **options)
        made._aclient, made._client = model.client, model.sync_client
        return made
