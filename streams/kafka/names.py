"""The names of a stage on the broker, made from the namespace and the stage's own name."""

CHANGELOG_SUFFIX = ".changelog"
TICKER = "ticker"


def group_id(namespace: str, stage: str) -> str:
    """Return the consumer group of a stage; a run's stage carries the run: `rollbus.grouping.main`."""
    return f"{namespace}{stage}"


def transactional_id(namespace: str, stage: str, owner: str) -> str:
    """Return the id of the transactions of one owner of a stage's partitions: a process, in one assignment."""
    return f"{group_id(namespace, stage)}.{owner}"


def changelog_topic(namespace: str, stage: str) -> str:
    """Return the compacted topic that holds a stage's rows, partition by partition as its input."""
    return f"{namespace}{stage}{CHANGELOG_SUFFIX}"


def ticker_id(namespace: str) -> str:
    """Return the transactional id that fences the one ticker of a namespace."""
    return f"{namespace}{TICKER}"
