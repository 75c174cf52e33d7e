"""The backend of `rollbus art-server` for a model at a service with the Tinker API, with its endpoint for agents.

Lives on one loop; the endpoint and the decisions on who serves have threads of their own, and ask that loop.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from rollbus.runtime.health.heart import Report
from rollbus.schemas.errors import ConfigurationError, RejectedError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.trainer.art_server.control.following import DecisionFollower
from rollbus.trainer.art_server.endpoint.endpoint import ServedModel, build_app, model_door
from rollbus.trainer.art_server.endpoint.hints import HintPlace
from rollbus.trainer.art_server.endpoint.http_server import EndpointServer
from rollbus.trainer.art_server.endpoint.tokenizer import count_known_tokens, load_tokenizer, read_stop_ids
from rollbus.trainer.art_server.hosted.sampler import HostedLimits, HostedSampler
from rollbus.trainer.backends.model_settings import ServiceSettings
from rollbus.trainer.backends.protocol import Capabilities
from rollbus.trainer.backends.tinker.backend import TinkerBackend, TrainedModel
from rollbus.trainer.backends.tinker.service import TinkerService


class HostedModel(TinkerBackend):
    """Fulfils `Backend`, and serves every version on the model's port."""

    def __init__(self, settings: ServiceSettings, service: TinkerService) -> None:
        if settings.tinker is None:
            raise ConfigurationError("a hosted model needs `art_server: tinker:`")
        self.settings = settings
        self._tokenizer = load_tokenizer(settings.base_model)
        trained = TrainedModel(
            settings.model,
            settings.tinker.base_model,
            settings.tinker.lora_rank,
            count_known_tokens(self._tokenizer),
            settings.options.max_tokens,
        )
        super().__init__(
            trained,
            service,
            settings.tinker_directory,
            settings.retention,
            place_hint=HintPlace(self._tokenizer),
        )
        self.served: ServedModel
        self._sampler: HostedSampler | None = None
        self._server: EndpointServer | None = None
        self._following: DecisionFollower | None = None
        self._loop: asyncio.AbstractEventLoop

    @property
    def base_url(self) -> str | None:
        """Where agents ask."""
        return f"http://{self._server.host}:{self._server.port}/v1" if self._server else None

    async def start(self) -> None:
        """Find the versions, open the one that serves, and open the endpoint."""
        await super().start()
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        sampler = self._sampler = HostedSampler(
            self,
            self._tokenizer,
            stop_ids=read_stop_ids(settings.base_model),
            limits=HostedLimits(self.model.vocabulary, self.max_tokens),
            keep=settings.options.keep_versions,
        )
        serving = self.weights_tree.serving
        await sampler.open(serving)
        self.served = ServedModel(settings.model, sampler, self._tokenizer, serving, sampler.load_version)
        await sampler.pin([serving])
        door = model_door(settings.api_key, settings.host, settings.find_principal)
        self._server = EndpointServer(build_app(self.served), door, host=settings.host, port=settings.port)
        await asyncio.to_thread(self._server.start)
        if settings.decisions is not None:
            self._following = DecisionFollower(settings.decisions, settings.model, self._follow)
            self._following.start()

    def report(self) -> Report:
        """Say which version serves, and whether requests or an update wait."""
        running, _ = self.served.sampler.count_rows()
        work = self.served.requests + self.served.sampler.steps + len(self.weights_tree.results)
        trouble = None if self._following is None else self._following.trouble
        is_waiting = self.one_update.locked() or running > 0
        return Report(
            holds=(self.model.name,),
            positions={"version": self.served.serving},
            work=work,
            is_behind=is_waiting,
            trouble=trouble,
        )

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        return replace(await super().capabilities(), inference_url=self.base_url)

    def opened_versions(self) -> frozenset[int]:
        """Return the versions that answer requests now, and the canary."""
        canary = None if self._sampler is None else self.served.canary
        open_versions = () if self._sampler is None else self._sampler.loaded()
        return frozenset(open_versions) if canary is None else frozenset({*open_versions, canary})

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version once it is open; with `rollback` the next batch starts there."""
        if self._sampler is None or not await self._sampler.open(version):
            raise RejectedError(f"version {version} of {self.model.name!r} is not saved at the service")
        await super().promote(version, rollback=rollback)
        self.served.serving = version
        await self._pin_served(self._sampler)

    async def close(self) -> None:
        """Stop serving, let a running update end, and let go of the service."""
        if self._following is not None:
            await asyncio.to_thread(self._following.stop)
            self._following = None
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        if self._sampler is not None:
            await self._sampler.close()
        await super().close()

    def _follow(self, decision: PolicyDecision) -> None:
        """Route episodes by a decision, and serve what it says; called on a thread of its own."""
        self._wait_for(self._use_decision(decision))

    async def _use_decision(self, decision: PolicyDecision) -> None:
        self.served.router.use(decision)
        if decision.serving is not None and decision.serving != self.served.serving:
            await self.promote(decision.serving)
        if self._sampler is not None:
            await self._pin_served(self._sampler)

    async def _pin_served(self, sampler: HostedSampler) -> None:
        """Keep what serves and the canary open."""
        canary = self.served.canary
        if canary is not None and not await sampler.open(canary):
            canary = None
        await sampler.pin([self.served.serving] if canary is None else [self.served.serving, canary])

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()
