"""One changelog row of each table of each stage, as bytes that a release has written.

`python -m tests.streams.golden --write` adds the files that are missing; one that exists is never changed. `--replace`
writes all of them again, which is right until their version is released.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    CheckConfig,
    CurriculumConfig,
    DeliveryConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.delivery import EpisodeObserved
from rollbus.schemas.records.steps import Evaluation
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.delivery.observing import ObservingStage
from rollbus.streams.stages.delivery.stage import DeliveryStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.builders import (
    START_MS,
    make_alias,
    make_alias_reward,
    make_episode,
    make_group,
    make_score,
    make_started,
    make_tick,
    make_trajectory,
    make_version,
)
from tests.stepper import Stepper

FOLDER = Path(__file__).parent
SEPARATOR = b"\x1f"
RUN = RunConfig(
    grouping=GroupingConfig(group_size=2),
    curriculum=CurriculumConfig(mode="pools", groups_per_window=2),
    batching=BatchingConfig(groups_per_step=1),
)
DELIVERY_RUN = RunConfig(delivery=DeliveryConfig())
CHECKED_RUN = RunConfig(delivery=DeliveryConfig(checks=(CheckConfig(evaluation="held-out", metric="reward"),)))
ALONE = RunConfig(grouping=GroupingConfig(strategy="single"))
STAGES: dict[str, Any] = {
    "alias": AliasStage(AssemblyConfig()),
    "assembly": AssemblyStage(AssemblyConfig()),
    "scoring": ScoringStage(ScoringConfig(), keep_ms=60_000),
    "grouping": GroupingStage(RUN),
    "curriculum": CurriculumStage(RUN),
    "observing": ObservingStage(DELIVERY_RUN),
    "delivery": DeliveryStage(DELIVERY_RUN),
}


def rows() -> Iterator[tuple[str, str, bytes, bytes]]:
    """Yield stage, table, key and bytes of one row of each table, as today's code writes them."""
    row_by_table: dict[tuple[str, str], tuple[bytes, bytes]] = {}
    for stage, records in _logs():
        stepper = Stepper(stage)
        for record in [make_tick(0), *records]:
            stepper.feed(record, key="main")
            for key, value in stepper.changelog.items():
                table, _, row_key = key.partition(SEPARATOR)
                row_by_table.setdefault((stage.name.partition(".")[0], table.decode()), (row_key, value))
    for (stage_name, table_name), (row_key, value) in row_by_table.items():
        yield stage_name, table_name, row_key, value


def write_missing(*, replace: bool) -> Iterator[Path]:
    """Write each table's row, in its codec's version, where there is no file yet; or all of them again."""
    for stage, table, key, value in rows():
        path = FOLDER / f"{stage}.{table}.{value[0]}.hex"
        text = f"{key.hex()}\n{value.hex()}\n"
        if not path.exists() or (replace and path.read_text() != text):
            path.write_text(text)
            yield path


def _logs() -> Iterator[tuple[Any, list[Any]]]:
    yield (
        STAGES["alias"],
        [_applied_config("assembly"), make_alias("a"), make_alias_reward("a"), make_alias_reward("b")],
    )
    yield STAGES["assembly"], [_applied_config("assembly"), *make_episode("e1"), make_started("e2")]
    yield STAGES["scoring"], [_applied_config("scoring"), make_trajectory()]
    waiting = make_score("t3", None, task="slow", example_id="x2")
    explicit = [make_score(name, group_id="g", group_size=2) for name in ("t4", "t5")]
    yield STAGES["grouping"], [_applied_config("grouping", "main", RUN), waiting, *explicit]
    yield GroupingStage(ALONE), [make_score("t6")]
    groups = [make_group(name) for name in ("a", "b", "c", "d", "e")]
    applied = _applied_config("curriculum", "main", RUN)
    yield STAGES["curriculum"], [make_version(0), *groups, make_version(1, 0), applied]
    yield STAGES["observing"], [_applied_config("observing", "main", DELIVERY_RUN)]
    seen_ms = START_MS + 10_000
    observed = [
        EpisodeObserved(
            run_id="main",
            trajectory_id=f"t{number}",
            episode_id=f"e{number}",
            task="play",
            first_seen_ms=seen_ms,
            served_versions=(0,),
            value=0.5,
        )
        for number in range(3)
    ]
    ticks = [make_tick(number, stream_time_ms=START_MS + number * 100_000) for number in (1, 2)]
    candidate = make_version(1, 0, state="candidate")
    applied = _applied_config("delivery", "main", DELIVERY_RUN)
    yield (
        STAGES["delivery"],
        [make_version(0), candidate, applied, make_tick(1, stream_time_ms=START_MS + 1), *observed, *ticks],
    )
    evaluation = Evaluation(
        evaluation_id="v",
        model="agent",
        policy_version=0,
        name="held-out",
        episodes=9,
        metrics={"reward": 0.5, "reward_low": 0.25, "reward_high": 0.75},
        set_hash="set",
        evaluated_at_ms=START_MS,
    )
    yield DeliveryStage(CHECKED_RUN), [make_version(0), evaluation]


def _applied_config(stage: str, run_id: str | None = None, run: RunConfig | None = None) -> ConfigApplied:
    """A configuration that names only what differs, so that later fields do not change its bytes."""
    content = run.model_dump_json(exclude_unset=True) if run else "{}"
    return ConfigApplied(stage=stage, run_id=run_id, config_hash="hash", content=content)
