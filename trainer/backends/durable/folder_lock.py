"""One process at a time in a folder of checkpoints: two would remove each other's half-written files."""

import fcntl
import logging
import os
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

LOCK = "in-use-by"


class FolderLock:
    """Held until `close`, or until the process ends in any way; not by forked processes."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder; ConfigurationError if another process has it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / LOCK).open("a+", encoding="ascii")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # either, by POSIX
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise ConfigurationError(
                f"{folder} is in use by process {holder}, which serves and trains this model; stop it first, or give "
                "`directory` another folder"
            ) from error
        except OSError as error:
            logger.warning("%s cannot be locked (%s): see that no other process uses it", folder, error.strerror)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def close(self) -> None:
        """Unlock the folder; harmless to repeat."""
        self._file.close()
