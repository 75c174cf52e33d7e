"""Take from this process what no statement needs: secrets in its environment, files outside its data, the network.

The engine has functions that read files and open connections, and a new release may bring more. So what the check of
a reader's statement overlooks still finds nothing: Landlock leaves the data folder and the installed code, seccomp
refuses new sockets, other programs and a look into other processes. Both hold for threads that start later, so
`confine` comes before the engine is imported, which starts some.

No library on PyPI for either is well kept, and the kernel's interface is small and never changes.
"""

import ctypes
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import rollbus
import rollbus.schemas

INHERITED_VARIABLES = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "TZDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"})
"""Names of variables that stay: by the beginnings of these, secrets of Langfuse and LangSmith would."""
INHERITED_KINDS = ("LC_", "PYTHON")
"""Beginnings of the names of others that stay."""
SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/sys/devices/system", "/sys/fs/cgroup",
          "/dev/urandom", "/dev/null", "/proc/self/auxv")  # fmt: skip
"""Libraries, and how much memory and how many processors there are.

The last is what the kernel gave the process at its start. Where the engine cannot read it, it looks for it behind the
environment, which has moved as soon as a variable was set, and follows what lies there.
"""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
"""Rights that a rule about a single file may name."""
RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many rights on files a version of Landlock knows; later ones know 16."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
SET_NO_NEW_PRIVS = 38
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}
REFUSED_CALLS = {  # socket, connect, ptrace, execve, execveat, process_vm_readv and writev, bpf, io_uring, pidfd_getfd
    "x86_64": (41, 42, 101, 59, 322, 310, 311, 321, 425, 438),
    "aarch64": (198, 203, 117, 221, 281, 270, 271, 280, 425, 438),
}
"""Numbers of system calls: they never change."""
OTHER_ABI = 0x4000_0000
"""From this number on, x86-64 has the same calls a second time."""
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOWED, REFUSED = 0x7FFF_0000, 0x0005_0001
"""The second is the error EPERM."""

_libc = ctypes.CDLL(None, use_errno=True)


def shed_environment() -> None:
    """Start this program again without its environment, if that holds more than the process needs.

    Deleting a variable is not enough: /proc/self/environ shows what the process was started with.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED_VARIABLES or name.startswith(INHERITED_KINDS)
    }
    if environment != dict(os.environ):
        os.execve(sys.executable, sys.orig_argv, environment)


def confine(data: Path) -> list[str]:
    """Leave this process its data folder and its code; return what the kernel could not be asked for, in words."""
    os.environ["TMPDIR"] = str(data)  # the engine makes a folder for itself when it is imported
    _libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    missing = []
    requests: dict[str, Callable[[], None]] = {"Landlock": lambda: _restrict_files(data), "seccomp": _refuse_calls}
    for name, ask in requests.items():
        try:
            ask()
        except (OSError, KeyError) as error:
            missing.append(f"{name}: {error}")
    return missing


def _restrict_files(data: Path) -> None:
    abi = _call(CREATE_RULESET, None, 0, 1)
    every_right = (1 << RIGHTS_BY_ABI.get(abi, 16)) - 1
    ruleset_attributes = struct.pack("QQQ", every_right, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    ruleset = _call(CREATE_RULESET, ruleset_attributes, 8 if abi < 4 else 16 if abi < 6 else 24, 0)
    try:
        _add_rule(ruleset, data, every_right)
        for path in _code():
            _add_rule(ruleset, path, every_right & (EXECUTE | READ_FILE | READ_DIR))
        _add_rule(ruleset, Path("/dev/null"), WRITE_FILE)
        _call(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _code() -> Iterator[Path]:
    """Yield where Python and packages are; a package may be the user's own, or of the Python beneath this one."""
    installed = sysconfig.get_paths()
    names = [installed[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    names += [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    yield from {Path(name) for name in (*SYSTEM, *names, *rollbus.__path__, *rollbus.schemas.__path__)}


def _add_rule(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        allowed = rights if path.is_dir() else rights & OF_FILES
        _call(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
    finally:
        os.close(place)


def _refuse_calls() -> None:
    """Refuse system calls, in all threads that there are and will be."""
    machine = platform.machine()
    numbers = REFUSED_CALLS[machine]
    end = len(numbers) + 1
    program = [
        (LOAD, 0, 0, 4),
        (JUMP_IF_EQUAL, 0, end + 2, AUDIT_ARCH[machine]),
        (LOAD, 0, 0, 0),
        (JUMP_IF_AT_LEAST, end, 0, OTHER_ABI),
        *((JUMP_IF_EQUAL, end - 1 - place, 0, number) for place, number in enumerate(numbers)),
        (RETURN, 0, 0, ALLOWED),
        (RETURN, 0, 0, REFUSED),
    ]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    _call(SECCOMP[machine], 1, 1, struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions)))


def _call(number: int, *arguments: "int | bytes | None") -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
