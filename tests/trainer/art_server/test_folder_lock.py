import subprocess
import sys
from pathlib import Path

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.backends.durable.folder_lock import FolderLock

HOLD = """
import os, sys
from pathlib import Path
from rollbus.trainer.backends.durable.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(os.getpid(), flush=True)
if sys.argv[2:] and os.fork() == 0:
    sys.stdin.read()  # outlives its parent
    os._exit(0)
sys.stdin.readline()
"""


def hold(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_folder_is_refused_with_the_id_of_the_process_that_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        assert other.stdout is not None
        number = other.stdout.readline().strip()
        with pytest.raises(ConfigurationError, match=f"in use by process {number}, .* stop it first"):
            FolderLock(tmp_path)
        other.kill()
        other.wait()
    FolderLock(tmp_path).close()


def test_a_child_that_outlives_its_parent_does_not_keep_the_folder(tmp_path: Path) -> None:
    with hold(tmp_path, "fork") as other:
        assert other.stdout is not None
        other.stdout.readline()
        other.kill()
        other.wait()
        FolderLock(tmp_path).close()
        assert other.stdin is not None
        other.stdin.close()  # the child ends


def test_a_folder_that_was_let_go_can_be_taken_again(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.close()
    lock.close()
    FolderLock(tmp_path).close()
