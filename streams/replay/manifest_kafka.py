"""Which replays there are: manifests in `replays` of the namespace that was replayed. The newest of a name holds."""

from contextlib import aclosing

from rollbus.schemas.codec import decode
from rollbus.schemas.errors import ConfigurationError, RecordError, nearest
from rollbus.schemas.replays import ReplayManifest
from rollbus.schemas.topics import REPLAYS
from rollbus.streams.replay.recorded_kafka import read_whole
from rollbus.streams.sending_kafka import send_record
from rollbus.streams.settings import StreamSettings


async def read_manifests(settings: StreamSettings) -> dict[str, ReplayManifest]:
    """Return the newest manifest of each replay, deleted ones left out; raises UnavailableError."""
    found: dict[str, ReplayManifest] = {}
    async with aclosing(read_whole(settings, REPLAYS)) as records:
        async for raw in records:
            try:
                record = decode(raw.value)
            except RecordError:
                continue  # the sink, which writes manifests down, dead-letters it
            if isinstance(record, ReplayManifest):
                found[record.name] = record
    return {name: manifest for name, manifest in found.items() if manifest.state != "deleted"}


async def write_manifest(settings: StreamSettings, manifest: ReplayManifest) -> None:
    """Write a manifest and wait until it is confirmed; raises UnavailableError."""
    await send_record(settings, REPLAYS, manifest.name, manifest)


async def known_manifest(settings: StreamSettings, name: str) -> ReplayManifest:
    """Return a replay's manifest, whole or not; raises ConfigurationError for one that is not there."""
    manifests = await read_manifests(settings)
    if name not in manifests:
        raise ConfigurationError(f"no replay {name!r} of {settings.namespace}; {nearest(name, manifests)}")
    return manifests[name]


async def find_manifest(settings: StreamSettings, name: str) -> ReplayManifest:
    """Return a replay that counts; raises ConfigurationError for one that is not there or not whole."""
    manifest = await known_manifest(settings, name)
    if manifest.state not in ("complete", "following"):
        raise ConfigurationError(
            f"replay {name!r} is not whole: it was {manifest.state} and has not ended; give its command again to go on"
        )
    return manifest
