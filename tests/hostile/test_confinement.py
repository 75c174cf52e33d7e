"""What is left to a process that has confined itself."""

import os
import subprocess
import sys
from pathlib import Path

CONFINED_PROGRAM = """
import sys
from pathlib import Path
from rollbus.local.clickhouse.confinement import confine

missing = confine(Path(sys.argv[1]))
assert not missing, missing
"""
MOVED_ENVIRONMENT = """
import ctypes
import importlib
import os
from concurrent.futures import ThreadPoolExecutor

variables = [ctypes.create_string_buffer(name + b"=" + value) for name, value in os.environb.items()]
behind = 0, 33, 0x1000, 0, 0  # the end of the variables; then, as the kernel writes it: its own library is at 0x1000
block = (ctypes.c_void_p * (len(variables) + len(behind)))(*map(ctypes.addressof, variables), *behind)
ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(block)
ThreadPoolExecutor(1).submit(importlib.import_module, "chdb").result()
"""
OF_THE_MACHINE = "/proc/self/environ", "/proc/self/maps", "/etc/passwd"
OPEN_OTHERS = """
for name in OTHERS:
    try:
        open(name, "rb").close()
    except PermissionError:
        print("refused")
"""


def run_confined(folder: Path, *code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "".join((CONFINED_PROGRAM, *code))
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, cwd=folder
    )


def test_the_engine_starts_with_any_environment(tmp_path: Path) -> None:
    done = run_confined(tmp_path, MOVED_ENVIRONMENT)
    assert done.returncode == 0, done


def test_secrets_named_like_a_locale_are_shed(tmp_path: Path) -> None:
    script = tmp_path / "shed.py"
    script.write_text(
        "import os\nfrom rollbus.local.clickhouse.confinement import shed_environment\n"
        "shed_environment()\nprint(*sorted(os.environ))\n"
    )
    stays = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], "TZ": "UTC"}
    secrets = {"LANGFUSE_SECRET_KEY": "sk", "LANGSMITH_API_KEY": "ls", "PATHFINDER_TOKEN": "pf"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=stays | secrets
    )
    assert done.stdout.split() == sorted(stays), done


def test_the_users_packages_can_be_imported_but_no_other_file_opened(
    tmp_path: Path,
) -> None:
    (packages := tmp_path / "own" / "site-packages").mkdir(parents=True)
    (packages / "of_the_user.py").write_text("print('imported')")
    (secret := tmp_path / "own" / "secret").write_text("")
    (data := tmp_path / "data").mkdir()
    code = f"import of_the_user\nOTHERS = {(str(secret), *OF_THE_MACHINE)}\n{OPEN_OTHERS}"
    done = run_confined(data, code, PYTHONPATH=str(packages))
    assert done.stdout.split() == ["imported", *["refused"] * 4], done
