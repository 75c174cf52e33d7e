"""The gate between training and serving: a version that was measured and is not worse is served, others wait."""

from collections.abc import Awaitable, Callable

from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.topics import EVALUATIONS, POLICY_VERSIONS
from rollbus.trainer.ledger.lineage import Lineage
from rollbus.trainer.ledger.log import ReceivedBatch
from rollbus.trainer.operate.policy import roll_back
from rollbus.trainer.validation.evaluation import build_evaluation
from rollbus.trainer.validation.promotion import PromotionRule, find_promotion
from tests.builders import START_MS, make_version
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import World

RULE = PromotionRule(evaluation="held out", metric="reward")


def measure(version: int, value: float, name: str = "held out") -> Evaluation:
    return build_evaluation(
        {"reward": [value, value + 0.5]}, model="agent", policy_version=version, name=name, now_ms=version
    )


def make_lineage() -> Lineage:
    """Version 0 serves; 1 to 3 are candidates, each trained from the one before."""
    new_lineage = Lineage()
    new_lineage.apply(make_version(0, state="serving"))
    for version in (1, 2, 3):
        new_lineage.apply(make_version(version, parent=version - 1, state="candidate"))
    return new_lineage


def find_promoted(*evaluations: Evaluation, rule: PromotionRule = RULE) -> int | None:
    promotion = find_promotion(evaluations, make_lineage(), rule)
    return None if promotion is None else promotion.version


def test_the_newest_version_that_is_not_worse_is_promoted() -> None:
    assert find_promoted(measure(0, 0.3), measure(1, 0.4), measure(2, 0.3), measure(3, 0.1)) == 2


def test_nothing_is_promoted_without_a_measurement_of_both() -> None:
    assert find_promoted(measure(2, 0.9)) is None
    assert find_promoted(measure(0, 0.3)) is None
    assert find_promoted(measure(0, 0.3), measure(2, 0.9, name="another")) is None


def test_a_margin_asks_for_more_or_allows_for_noise() -> None:
    measurements = (measure(0, 0.3), measure(1, 0.35))
    strict_rule = PromotionRule(evaluation="held out", metric="reward", margin=0.1)
    assert find_promoted(*measurements, rule=strict_rule) is None
    lenient_rule = PromotionRule(evaluation="held out", metric="reward", margin=-0.1)
    assert find_promoted(measure(0, 0.3), measure(1, 0.25), rule=lenient_rule) == 1


def test_the_newest_record_of_a_repeated_measurement_counts() -> None:
    assert find_promoted(measure(0, 0.3), measure(1, 0.9), measure(1, 0.1)) is None


def test_one_episode_gives_no_certainty() -> None:
    evaluations = [
        build_evaluation({"reward": [value]}, model="agent", policy_version=version, name="held out", now_ms=version)
        for version, value in ((0, 0.3), (1, 0.9))
    ]
    assert find_promoted(*evaluations) == 1
    assert find_promoted(*evaluations, rule=PromotionRule(evaluation="held out", metric="reward", certain=True)) is None


async def test_the_trainer_serves_a_candidate_once_it_has_passed() -> None:
    world = World()
    world.add_batches(2)
    settings = {"serve": "after_evaluation", "promote_if": RULE}
    await world.trainer(**settings).run(until_idle=True)
    assert (await world.backend.versions()).serving == 0
    for version, value in ((0, 0.3), (1, 0.5), (2, 0.2)):
        world.broker.append(EVALUATIONS, measure(version, value))
    trainer = world.trainer(**settings)
    await trainer.run(until_idle=True)
    assert (await world.backend.versions()).serving == 1
    assert (trainer.ledger.lineage.serving, trainer.ledger.lineage.head) == (1, 2)
    await world.trainer(**settings).run(until_idle=True)
    assert (await world.backend.versions()).serving == 1


class OperatedLog(MemoryLog):
    """Let an operator act once the trainer finds no more batches."""

    def __init__(self, world: World, operator: Callable[[], Awaitable[None]]) -> None:
        super().__init__(world.broker, run_id="main", model="agent")
        self._operator: Callable[[], Awaitable[None]] | None = operator

    async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
        received_batch = await super().next_batch(timeout_s, skip_unreadable=skip_unreadable)
        operator = self._operator
        if received_batch is None and operator is not None:
            self._operator = None
            await operator()
        return received_batch


async def test_a_candidate_must_beat_the_version_that_an_operator_serves() -> None:
    """Version 2 is better than 0, which the trainer believes to serve, and nobody has compared it with 3."""
    world = World()
    world.add_batches(3)

    async def operator() -> None:
        await world.backend.promote(3)
        world.broker.append(POLICY_VERSIONS, make_version(3, parent=2, state="serving"))
        for version, value in ((0, 0.3), (2, 0.5)):
            world.broker.append(EVALUATIONS, measure(version, value))

    trainer = world.trainer(log=OperatedLog(world, operator), serve="after_evaluation", promote_if=RULE)
    await trainer.run(until_idle=True)
    assert (await world.backend.versions()).serving == 3
    assert trainer.ledger.lineage.serving == 3


async def test_a_trainer_fenced_by_a_rollback_serves_no_rolled_back_version() -> None:
    world = World()
    world.add_batches(2)

    async def operator() -> None:
        log = MemoryLog(world.broker, run_id="main", model="agent")
        await roll_back(log, world.backend, world.settings, version=1, reason="a bad reward", now_ms=START_MS)
        for version, value in ((0, 0.3), (1, 0.3), (2, 0.9)):
            world.broker.append(EVALUATIONS, measure(version, value))

    await world.trainer(log=OperatedLog(world, operator), serve="after_evaluation", promote_if=RULE).run(
        until_idle=True
    )
    assert (await world.backend.versions()).serving == 1
