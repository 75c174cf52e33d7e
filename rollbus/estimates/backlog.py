"""What the log has and no score shows yet: an estimate of too few episodes may only have come too soon."""

from rollbus.runtime.kafka.lag import open_lag
from rollbus.schemas.topics import EPISODE_EVENTS, TRAJECTORIES
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings

STAGES = {"assembly": (EPISODE_EVENTS, "assembled"), "scoring": (TRAJECTORIES, "scored")}


async def describe_backlog(settings: StreamSettings) -> str | None:
    """Say how many records wait for assembly and scoring, ticks among them; None if none does."""
    groups = {names.group_id(settings.namespace, stage): stage for stage in STAGES}
    topics = {group: [STAGES[stage][0].full_name(settings.namespace)] for group, stage in groups.items()}
    async with open_lag(settings.kafka) as lag:
        lags = await lag.read(topics)
    waiting = [
        f"{lags[group].lag:,} records of {STAGES[stage][0].name} are not {STAGES[stage][1]} yet"
        for group, stage in groups.items()
        if lags[group].lag
    ]
    return "; ".join([*waiting, "does a worker run (`rollbus status`)?"]) if waiting else None
