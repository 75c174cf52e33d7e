"""Which checkpoints may go: all but the newest few, every k-th, and those in use.

Pure. The origin of a removed checkpoint stays known (see `VersionStore.retire`), so lineage, staleness and journal do
not depend on what is kept. The optimizer's state is in the checkpoint and goes with it.
"""

from collections.abc import Iterable, Mapping, Sequence

from rollbus.trainer.backends.model_settings import Retention

BASE_VERSION = 0
"""The base model: what a run starts from, and the KL penalty's default reference."""


def expendable(
    versions: Sequence[int], parents: Mapping[int, int | None], retention: Retention, *, in_use: Iterable[int]
) -> tuple[int, ...]:
    """Versions to remove, oldest first. `in_use` (served, trained on, a reference) stays, and so do their parents."""
    if retention.keep_newest is None:
        return ()
    newest = sorted(versions)[-max(retention.keep_newest, 1) :]
    protected_versions = find_protected(parents, in_use) | set(newest)
    every = retention.keep_every
    return tuple(
        version
        for version in sorted(versions)
        if version not in protected_versions and (every is None or version % every != 0)
    )


def find_protected(parents: Mapping[int, int | None], in_use: Iterable[int]) -> frozenset[int | None]:
    """Return what never goes: the base model, what is in use, and its parents."""
    in_use = frozenset(in_use)
    return frozenset({BASE_VERSION, *in_use, *(parents.get(version) for version in in_use)})
