"""A shadow's configuration into live: ConfigApplied in every partition of the stages' inputs, in one transaction.

From its place in the log on, live does what the shadow did; nothing is restarted, and a replay does so there too.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka.errors import TopicAuthorizationFailedError

from rollbus.runtime.kafka.clients import running
from rollbus.runtime.kafka.writing import Row, write_transaction
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.config import Config, RunConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.schemas.topics import CONFIGURED, RUN_LOG
from rollbus.streams.exactly_once.transaction import new_producer
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.replay.kafka.live_topics import read_run_configs
from rollbus.streams.replay.plan.plan import SETTINGS_OF
from rollbus.streams.rewards.registry import Registry, check

logger = logging.getLogger(__name__)

WRITER_ID = "promote"


async def promote(
    settings: StreamSettings, manifest: ReplayManifest, registry: Registry, runs: Sequence[RunConfig]
) -> list[str]:
    """Put the changes of a replay into effect; return its stages. Raises ConfigurationError, UnavailableError.

    `runs` are live's, as the workers are started with.
    """
    records = [
        ConfigApplied(
            stage=override.stage, run_id=override.run_id, config_hash=override.config_hash, content=override.content
        )
        for override in manifest.overrides
    ]
    if not records:
        raise ConfigurationError(f"replay {manifest.name!r} did nothing differently; there is nothing to promote")
    check_workers(records, registry, runs)
    if any(record.run_id for record in records):
        refuse_reverting(manifest.name, records, await _in_effect(settings), began_with(manifest), runs)
    async with running(settings.kafka, new_producer(settings, f"{settings.namespace}{WRITER_ID}")) as producer:
        await write_transaction(producer, [row for record in records for row in _rows(settings, record)])
    return [f"{record.stage}.{record.run_id}" if record.run_id else record.stage for record in records]


def check_workers(records: Iterable[ConfigApplied], registry: Registry, runs: Iterable[RunConfig]) -> None:
    """Raise ConfigurationError for what the workers of these runs cannot do.

    They would stop at a reward function that they do not have. A run without rewards over groups has no group-scoring
    stage; closed groups sent there would wait for ever.
    """
    judged_runs = {run.run_id for run in runs if run.grouping.rewards}
    for record in records:
        if record.stage == "scoring":
            check(registry, ScoringConfig.model_validate_json(record.content).rewards, "trajectory")
        elif record.stage == "grouping":
            rewards = RunConfig.model_validate_json(record.content).grouping.rewards
            check(registry, rewards, "group")
            if rewards and record.run_id not in judged_runs:
                raise ConfigurationError(
                    f"run {record.run_id} has no grouping.rewards in live's settings, so no worker would judge the "
                    f"closed groups for {', '.join(reward.name for reward in rewards)}, and none would be trained; "
                    "set it in the settings and restart the workers"
                )


def refuse_reverting(
    name: str,
    records: Iterable[ConfigApplied],
    live: Mapping[str, RunConfig],
    began: Mapping[str, str],
    runs: Iterable[RunConfig],
) -> None:
    """Raise ConfigurationError where a run would lose what was put into effect and is not what the replay began from.

    A record holds a run whole, also the settings that the replay did not change. `live` are the configurations last
    applied and `began` the hashes of the settings that the replay began with, by run. A replay that comes to the
    settings as they are now is a way back to them, and allowed.
    """
    settings = {run.run_id: run for run in runs}
    contents = {record.run_id: record.content for record in records if record.run_id in settings}
    for run_id, content in contents.items():
        assert run_id is not None
        new, own_config = RunConfig.model_validate_json(content), settings[run_id]
        if lost_settings := list(_settings_lost(new, live.get(run_id, own_config), own_config, began.get(run_id))):
            raise ConfigurationError(
                f"replay {name!r} would set {', '.join(lost_settings)} in run {run_id}, "
                "since it did not begin from what is in effect; "
                "put that into the settings file too, and give the replay again under another name"
            )


def _settings_lost(new: RunConfig, live: RunConfig, replayed: RunConfig, began: str | None) -> Iterator[str]:
    """Yield the settings of a run in effect that a replay would change although its options did not name them."""
    if new == replayed or began == live.config_hash():
        return
    from_own = began in (None, replayed.config_hash())
    live_values, settings = _flat(live), _flat(replayed)
    new_values = _flat(new)
    for field in new_values | live_values:  # a section that is left out has its fields on one side alone
        value = new_values.get(field)
        if value != live_values.get(field) and (not from_own or value == settings.get(field)):
            yield f"{field} from {live_values.get(field)} to {value}"


def _flat(run: RunConfig) -> dict[str, Any]:
    """Return a run's settings by section and name, also those that are left out of its text as they are the usual."""
    flat: dict[str, Any] = {}
    for section in type(run).model_fields:
        settings = getattr(run, section)
        if isinstance(settings, Config):
            plain_settings = settings.model_dump(mode="json")
            names = type(settings).model_fields
            flat |= {f"{section}.{name}": plain_settings.get(name, getattr(settings, name)) for name in names}
        else:
            flat[section] = settings
    return flat


def began_with(manifest: ReplayManifest) -> dict[str, str]:
    """Return the hashes of the runs' settings that a replay began with."""
    return {
        place.removeprefix(SETTINGS_OF): config_hash
        for place, config_hash in manifest.configs.items()
        if place.startswith(SETTINGS_OF)
    }


async def _in_effect(settings: StreamSettings) -> dict[str, RunConfig]:
    """Return the runs' configurations that were last applied, as far as the log may be read."""
    try:
        return await read_run_configs(settings)
    except UnavailableError as error:
        if not isinstance(error.__cause__, TopicAuthorizationFailedError):
            raise
        logger.warning(
            "no permission to read %s, so a revert of an earlier promotion goes unnoticed; allow Read there",
            RUN_LOG.full_name(settings.namespace),
        )
        return {}


def _rows(settings: StreamSettings, record: ConfigApplied) -> list[Row]:
    data = encode(record)
    return [
        Row(topic.full_name(settings.namespace), partition, None, data)
        for topic in CONFIGURED[record.stage]
        for partition in range(partitions_of(topic, settings))
    ]
