"""What any process that holds much state does at its start."""

import gc
import logging

OBJECTS_BETWEEN_COLLECTIONS = 50_000
QUIET_LOGGERS = ("faust", "mode", "aiokafka", "rollbus.streams.transport")


def prepare_process() -> None:
    """Let Faust and aiokafka speak of trouble only, and the collector of cycles look seldom.

    State is many objects without a cycle, and by default all of them are looked at again and again.
    """
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    gc.freeze()
