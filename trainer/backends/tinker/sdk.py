"""A real service, through the `tinker` package.

Each run and each sampler has a session of its own, so that one that is ended, or forgotten by a service that was
restarted, takes nothing else with it. Every failure names the service; it may be tried again, unless the service says
that what it was asked is wrong.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rollbus.runtime.http.loopback import may_use_proxy
from rollbus.schemas.errors import ConfigurationError, RejectedError, RollbusError, UnavailableError
from rollbus.trainer.backends.tinker.service import (
    AdamSettings,
    LossSequence,
    PassOutput,
    SampledTokens,
    SamplingRequest,
    ServiceLoss,
    TrainingRun,
    VersionSampler,
)
from rollbus.trainer.backends.tinker.settings import TinkerAccess

os.environ.setdefault("TINKER_TELEMETRY", "0")  # read when a client is made

try:
    import tinker
    from tinker import types
    from tinker.lib.client_connection_pool_type import ClientConnectionPoolType
except ImportError as error:
    raise ConfigurationError(
        f"the package `tinker` is missing ({error}); install it with `pip install 'rollbus[tinker]'`"
    ) from error

logger = logging.getLogger(__name__)

ADAPTER_SEED = 0
ADAM_EPSILON = 1e-12
"""As the package's own default; gradients of a mean over a batch are small."""
HEALTH = "/api/v1/healthz"
HEALTH_TIMEOUT_S = 5.0
SERVING_NAME = "rollbus-serving"
NOT_THERE = 404
WRONG_REQUEST = (400, 422)


class SdkService:
    """Fulfils `TinkerService`."""

    def __init__(self, access: TinkerAccess) -> None:
        self._access = access
        self.url = access.url.rstrip("/")
        self._asker = self._new_client()
        """For questions outside of any session."""

    async def is_healthy(self) -> bool:
        """Ask once."""
        try:
            async with httpx.AsyncClient(timeout=HEALTH_TIMEOUT_S, trust_env=may_use_proxy(self.url)) as client:
                return (await client.get(self.url + HEALTH)).is_success
        except httpx.HTTPError:
            return False

    async def longest_sequence(self) -> int | None:
        """Return what the service says of the base model."""
        async with self.asking("which models it has"):
            capabilities = await asyncio.to_thread(self._asker.get_server_capabilities)
            by_name: dict[str | None, int | None] = {
                model.model_name: model.max_context_length for model in capabilities.supported_models
            }
        if self._access.base_model not in by_name:
            there = ", ".join(str(name) for name in by_name) or "none"
            raise ConfigurationError(f"{self.url} has no base model {self._access.base_model!r}; there are: {there}")
        return by_name[self._access.base_model]

    async def begin_run(self) -> TrainingRun:
        """Make an adapter; the same seed each time."""
        async with self._session("to begin a run") as client:
            training = await asyncio.to_thread(
                client.create_lora_training_client,
                base_model=self._access.base_model,
                rank=self._access.lora_rank,
                seed=ADAPTER_SEED,
            )
            return SdkRun(self, client, training)

    async def resume_run(self, state: str) -> TrainingRun:
        """Load weights and optimizer into a new run."""
        return await self._load_run(state, with_optimizer=True)

    async def saved_paths(self, run_id: str) -> tuple[str, ...]:
        """List a run's checkpoints; a service lists those that are complete."""
        try:
            async with self.asking(f"what run {run_id} saved"):
                rest = await asyncio.to_thread(self._asker.create_rest_client)
                listed = await _answer(await asyncio.to_thread(rest.list_checkpoints, run_id))
        except UnavailableError as error:
            if getattr(error.__cause__, "status_code", None) == NOT_THERE:
                return ()
            raise
        return tuple(checkpoint.tinker_path for checkpoint in listed.checkpoints)

    async def open_sampler(self, state: str) -> VersionSampler:
        """Load the state into a run of its own, and sample from that.

        Sampling from another version of a run that is trained would put that version's weights into the training:
        SkyRL's JAX backend keeps one copy for both.
        """
        run = await self._load_run(state, with_optimizer=False)
        try:
            path = await run.save_sampler(SERVING_NAME)
            async with self.asking(f"to sample from {path}"):
                sampling = await asyncio.to_thread(run.client.create_sampling_client, model_path=path)
        except BaseException:
            await run.close()
            raise
        return SdkSampler(self, run, sampling)

    async def delete(self, path: str) -> None:
        """Delete a checkpoint."""
        async with self.asking(f"to delete {path}"):
            rest = await asyncio.to_thread(self._asker.create_rest_client)
            await _answer(await asyncio.to_thread(rest.delete_checkpoint_from_tinker_path, path))

    async def close(self) -> None:
        """Close the connections that belong to no session."""
        await _close_session(self._asker._rest_holder)

    @asynccontextmanager
    async def asking(self, what: str) -> AsyncIterator[None]:
        """Turn any failure into one that names the service and what it was asked."""
        try:
            yield
        except RollbusError:
            raise
        except Exception as error:
            category = getattr(getattr(error, "category", None), "name", "")
            is_wrong = getattr(error, "status_code", None) in WRONG_REQUEST or category == "User"
            kind = RejectedError if is_wrong else UnavailableError
            raise kind(f"{self.url} was asked {what}: {type(error).__name__}: {error}") from error

    async def _load_run(self, state: str, *, with_optimizer: bool) -> "SdkRun":
        async with self._session(f"for a run with the state {state}") as client:
            load = client.create_training_client_from_state
            if with_optimizer:
                load = client.create_training_client_from_state_with_optimizer
            return SdkRun(self, client, await asyncio.to_thread(load, state))

    @asynccontextmanager
    async def _session(self, what: str) -> AsyncIterator[Any]:
        """Give a client with a session of its own, which is ended if what is asked fails."""
        async with self.asking(what):
            client = self._new_client()
            try:
                yield client
            except BaseException:
                await _close_session(client._session_holder)
                raise

    def _new_client(self) -> Any:
        key = self._access.api_key
        return tinker.ServiceClient(base_url=self.url, api_key=key.get_secret_value() if key else None)


class SdkRun:
    """Fulfils `TrainingRun`."""

    def __init__(self, service: SdkService, client: Any, training: Any) -> None:
        self._service, self.client, self._training = service, client, training

    @property
    def run_id(self) -> str:
        """Return the service's name of the run."""
        return str(self._training.model_id)

    async def forward_backward(self, data: Sequence[LossSequence], loss: ServiceLoss) -> PassOutput:
        """Send all sequences; the package cuts them into requests."""
        datums = [_make_datum(sequence) for sequence in data]
        async with self._service.asking(f"for a pass over {len(datums)} sequences with the loss {loss.name}"):
            output = await _answer(self._training.forward_backward(datums, loss.name, dict(loss.bounds) or None))
            logprobs = tuple(tuple(map(float, of_sequence["logprobs"].data)) for of_sequence in output.loss_fn_outputs)
            return PassOutput(logprobs, dict(output.metrics))

    async def optim_step(self, optimizer: AdamSettings) -> Mapping[str, float]:
        """Make one step of AdamW."""
        async with self._service.asking("for an optimizer step"):
            parameters = types.AdamParams(
                learning_rate=optimizer.learning_rate,
                beta1=optimizer.beta1,
                beta2=optimizer.beta2,
                eps=ADAM_EPSILON,
                weight_decay=optimizer.weight_decay,
                grad_clip_norm=optimizer.max_grad_norm,
            )
            response = await _answer(self._training.optim_step(parameters))
            return dict(response.metrics or {})

    async def save_sampler(self, name: str) -> str:
        """Save weights to sample from; return their path."""
        async with self._service.asking(f"to save sampling weights as {name}"):
            return str((await _answer(self._training.save_weights_for_sampler(name))).path)

    async def save_state(self, name: str) -> str:
        """Save weights and optimizer."""
        async with self._service.asking(f"to save the state as {name}"):
            return str((await _answer(self._training.save_state(name))).path)

    async def close(self) -> None:
        """Unload the run and end its session; a service that cannot lets it expire."""
        holder = self.client.holder

        async def unload() -> None:
            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                await client.models.unload(request=types.UnloadModelRequest(model_id=self.run_id))

        try:
            await holder.run_coroutine_threadsafe(unload())
        except Exception as error:
            logger.info("%s does not unload run %s: %s", self._service.url, self.run_id, error)
        finally:
            await _close_session(holder)


class SdkSampler:
    """Fulfils `VersionSampler`."""

    def __init__(self, service: SdkService, run: SdkRun, sampling: Any) -> None:
        self._service, self._run, self._sampling = service, run, sampling

    async def sample(self, prompt: Sequence[int], request: SamplingRequest) -> SampledTokens:
        """Sample one answer."""
        parameters = types.SamplingParams(
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop=list(request.stop_ids),
            temperature=request.temperature,
            top_p=request.top_p,
        )
        async with self._service.asking("for a sample"):
            response = await _answer(self._sampling.sample(types.ModelInput.from_ints(list(prompt)), 1, parameters))
            (sequence,) = response.sequences
            if sequence.logprobs is None:
                raise ValueError("the answer has no log-probs")
            return SampledTokens(
                tuple(sequence.tokens), tuple(map(float, sequence.logprobs)), sequence.stop_reason == "stop"
            )

    async def score(self, prompt: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probs of a prompt."""
        async with self._service.asking("for the log-probs of a prompt"):
            values = await _answer(self._sampling.compute_logprobs(types.ModelInput.from_ints(list(prompt))))
            if len(values) == len(prompt):  # with a first one, which nothing came before
                values = values[1:]
            if len(values) != len(prompt) - 1:
                raise ValueError(f"{len(values)} log-probs came for a prompt of {len(prompt)} tokens")
            return tuple(map(float, values))

    async def close(self) -> None:
        """Let go of the run."""
        await self._run.close()


async def _close_session(holder: Any) -> None:
    """End the heartbeats of a session, and close its connections, which the package leaves open."""
    if holder is None:  # it was never used
        return
    await asyncio.to_thread(holder.close)

    async def close_connections() -> None:
        for pool in holder._client_pools.values():
            for client in pool._clients:
                await client.close()

    try:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close_connections(), holder.get_loop()))
    except Exception as error:
        logger.info("the connections of a session are not closed: %s", error)


def _make_datum(sequence: LossSequence) -> types.Datum:
    inputs: Any = {  # the package makes tensors of lists
        "target_tokens": list(sequence.target_ids),
        "logprobs": list(sequence.logprobs),
        "advantages": list(sequence.advantages),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(list(sequence.token_ids)), loss_fn_inputs=inputs)


async def _answer(future: Any) -> Any:
    """Await what the package returns: some are futures of threads."""
    return await (asyncio.wrap_future(future) if isinstance(future, Future) else future)
