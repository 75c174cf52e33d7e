"""One finetuning run: what was configured, its name, its log and its recorder; and what a user's own parts get of it.

The parts find the run that they belong to here: `rollbus finetune` opens it before it makes them, and under
`nat finetune` the trainer does when it is initialized.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nat.data_models.config import Config
from nat.data_models.finetuning import TrainerAdapterConfig, TrajectoryBuilderConfig, TrajectoryCollection
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder

from rollbus.harness import troubles
from rollbus.harness.components import BusConfig, BusTrainerAdapterConfig, BusTrainerConfig
from rollbus.harness.publishing import publications
from rollbus.harness.recording import Recording
from rollbus.harness.run_log import RunLog
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.harness.processes import Processes

TASK = "workflow"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    config: Config
    bus: BusConfig

    @property
    def adapter(self) -> TrainerAdapterConfig:
        """The chosen adapter's configuration."""
        return self.config.trainer_adapters[self.config.finetuning.trainer_adapter or ""]

    @property
    def builder(self) -> TrajectoryBuilderConfig:
        """The chosen trajectory builder's configuration."""
        return self.config.trajectory_builders[self.config.finetuning.trajectory_builder or ""]

    @property
    def model(self) -> str:
        """The name of the trained model."""
        return self.adapter.backend.name if isinstance(self.adapter, BusTrainerAdapterConfig) else "agent"

    @property
    def trained(self) -> tuple[str, str] | None:
        """The base model's name and the trained one's; None where the model is trained elsewhere."""
        if not isinstance(self.adapter, BusTrainerAdapterConfig):
            return None
        return self.adapter.backend.base_model, self.adapter.backend.name

    @property
    def curriculum_on_bus(self) -> bool:
        """Whether the run's curriculum is the stage on the bus; a user's own trainer or adapter chooses in process."""
        trainer = self.config.trainers[self.config.finetuning.trainer or ""]
        return type(trainer) is BusTrainerConfig and isinstance(self.adapter, BusTrainerAdapterConfig)

    @property
    def reward(self) -> str:
        """The name of the evaluator whose score is the reward."""
        reward = self.config.finetuning.reward_function
        if reward is None:
            raise ConfigurationError("finetuning.reward_function is not set; name an entry of eval.evaluators")
        return reward.name


@dataclass(slots=True)
class Run:
    """A run whose log is open."""

    plan: Plan
    run_id: str
    log: RunLog
    resume: bool = False

    @property
    def recording(self) -> Recording:
        """The recorder."""
        return self.log.recording

    def attach(self, builder: TrajectoryBuilder) -> None:
        """Record what a user's own builder runs, and put what it finalizes on the log."""
        from rollbus.harness.evaluation import evaluate
        from rollbus.harness.trajectory_builder import BusTrajectoryBuilder

        if isinstance(builder, BusTrajectoryBuilder):
            return
        if type(builder).run_eval is TrajectoryBuilder.run_eval:
            builder.run_eval = partial(_evaluate, builder, self, evaluate)  # type: ignore[method-assign]
        builder.finalize = self._publishing(builder)  # type: ignore[assignment,method-assign]

    def _publishing(self, builder: TrajectoryBuilder) -> Callable[..., Awaitable[TrajectoryCollection]]:
        """Return the builder's `finalize`, its result published before anybody sees it."""
        finalize, epochs = builder.finalize, iter(range(1_000_000_000))

        async def published(run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
            collection = await finalize(run_id, meta)
            troubles.checked(collection, TrajectoryCollection, f"{type(builder).__name__}.finalize")
            number = next(epochs)
            await self.publish(collection, int((meta or {}).get("epoch", number)))
            return collection

        return published

    async def publish(self, collection: TrajectoryCollection, epoch: int) -> None:
        """Put those trajectories of an epoch on the log that are not there yet."""
        found = publications(
            collection,
            run_id=self.run_id,
            epoch=epoch,
            task=TASK,
            reward_name=self.plan.reward,
            now_ms=time.time_ns() // 1_000_000,
            model=self.plan.model,
            policy_version=self.log.view.newest_version(),
        )
        await self.log.publish(found)


async def _evaluate(builder: TrajectoryBuilder, run: Run, evaluate: Callable[..., Awaitable[Any]]) -> Any:
    return await evaluate(builder.run_config, run)


CURRENT: ContextVar[Run | None] = ContextVar("rollbus_run", default=None)


def current_run(part: str) -> Run:
    """Return the open run; raises ConfigurationError where there is none."""
    run = CURRENT.get()
    if run is None:
        raise ConfigurationError(
            f"{part} needs a run on the bus; name a trainer of `_type: rollbus_trainer`, or run `rollbus finetune`"
        )
    return run


@asynccontextmanager
async def opened_run(plan: Plan, run_id: str, processes: "Processes", *, resume: bool) -> AsyncIterator[Run]:
    """Open a run's log; its processes run. At a good end ClickHouse has everything."""
    from rollbus.harness.run_settings import processed_logprobs

    recording = Recording(processes.namespace, processes.sink(), processed=processed_logprobs(plan.config))
    log = RunLog(processes.bus(resume=resume), run_id, recording, check=processes.check)
    await log.bus.open()
    run = Run(plan, run_id, log, resume)
    CURRENT.set(run)
    try:
        if resume:
            await log.read_to_the_end()
        yield run
        await processes.drain()
    finally:
        CURRENT.set(None)
        await log.close()
