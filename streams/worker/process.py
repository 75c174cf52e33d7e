"""What any process that holds much state does at its start."""

import gc
import logging

OBJECTS_BETWEEN_COLLECTIONS = 50_000
QUIET_LOGGERS = ("faust", "mode", "aiokafka", "rollbus.streams.worker.transport")


def prepare_process() -> None:
    """Let Faust and aiokafka log warnings and errors only, and let the cycle collector run seldom.

    State is many objects without a cycle, and by default the collector visits all of them again and again.
    """
    for logger in map(logging.getLogger, QUIET_LOGGERS):
        logger.setLevel(max(logger.level, logging.WARNING))
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    gc.freeze()
