"""Art-servers for the tests, forked from one process that has imported torch and ART, which takes 20 s.

Run as `python -m tests.services.art.process PORT`.

Takes one JSON line from each connection, {"settings": {…}, "die_at": "…", "log": "…"}, and answers with the id of the
process that serves it and writes into the log. The servers are the real thing, started from settings as `rollbus
art-server run` does it; `die_at` names a point of an update that the process does not survive; `turned` lets it live
and turns the sign of the advantages of its updates. {"call": "module:function", "arguments": […], "log": "…"} calls a
function instead.
"""

import ctypes
import importlib
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rollbus.trainer.art_server.control import environment as art_environment

art_environment.protect()
art_environment.leave_out_unused()

from rollbus.local.process.tether import PR_SET_PDEATHSIG  # noqa: E402
from rollbus.settings import Settings  # noqa: E402
from rollbus.stack_settings import HOST  # noqa: E402
from rollbus.trainer.art_server.arts_own import service as arts_own_service  # noqa: E402, F401
from rollbus.trainer.art_server.checkpoints import checkpoint  # noqa: E402
from rollbus.trainer.art_server.checkpoints.journal import Journal  # noqa: E402
from rollbus.trainer.art_server.control import local as art_local  # noqa: E402, F401
from rollbus.trainer.art_server.control import old_routes as art_old_routes  # noqa: E402, F401
from rollbus.trainer.art_server.control import server as art_server  # noqa: E402
from rollbus.trainer.art_server.learner import torch_service  # noqa: E402
from rollbus.trainer.art_server.learner.update import Learner  # noqa: E402
from rollbus.trainer.backends.sequences import TokenSequence, scale_advantages  # noqa: E402


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers leave no zombies
    with socket.create_server((HOST, int(sys.argv[1]))) as server:
        while True:
            connection, _ = server.accept()
            with suppress(OSError), connection, connection.makefile("rw") as file:  # who asks may be gone
                if not (line := file.readline()):  # only asks whether it listens
                    continue
                if (process_id := os.fork()) == 0:
                    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # none outlives a run that is killed
                    for handle in (file, connection, server):
                        handle.close()
                    _serve(json.loads(line))
                file.write(f"{process_id}\n")


def _serve(order: dict[str, Any]) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for output in (1, 2):
            os.dup2(os.open(order["log"], os.O_WRONLY | os.O_APPEND), output)
        if "call" in order:
            module, _, function = order["call"].partition(":")
            getattr(importlib.import_module(module), function)(*order["arguments"])
        else:
            _die_at(order["die_at"])
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
            settings = Settings.model_validate(order["settings"])
            assert settings.art_server.base_model is not None
            chosen = settings.art_server_settings(settings.art_server.base_model)
            art_server.serve(chosen, settings.stack.art_port)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _die_at(point: str) -> None:
    """Make the process kill itself, as `kill -9` would, when an update gets there."""
    if point == "started":
        torch_service.TorchService._step = _killed_before(torch_service.TorchService._step)  # type: ignore[method-assign]
    elif point == "updated":
        Learner._apply = _killed_after(Learner._apply)  # type: ignore[method-assign]
    elif point == "checkpoint":
        checkpoint.publish_folder = _killed_before(checkpoint.publish_folder)
    elif point == "torn checkpoint":
        checkpoint.save_file = _torn  # type: ignore[attr-defined,assignment]
    elif point == "published":
        checkpoint.publish_folder = _killed_after(checkpoint.publish_folder)
    elif point == "turned":
        Learner.step = _turned(Learner.step)  # type: ignore[method-assign]
    elif point == "recorded":
        Journal.done = _killed_after(Journal.done)  # type: ignore[method-assign]


def _turned(step: Callable[..., Any]) -> Callable[..., Any]:
    def turned(learner: Learner, sequences: Sequence[TokenSequence], *args: Any, **kwargs: Any) -> Any:
        return step(learner, list(map(_turn_signs, sequences)), *args, **kwargs)

    return turned


def _turn_signs(sequence: TokenSequence) -> TokenSequence:
    (turned,) = scale_advantages([replace(sequence.trajectory, turns=sequence.turns)], -1.0)
    return replace(sequence, trajectory=turned, turns=turned.turns)


def _killed_before(function: Callable[..., Any]) -> Callable[..., Any]:
    def dying(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return dying


def _killed_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def dying(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    return dying


def _torn(tensors: Any, path: Any, **kwargs: Any) -> None:
    """Half a file, then the end."""
    with open(path, "wb") as file:
        file.write(b"\x40\x00\x00\x00")
        file.flush()
        os.fsync(file.fileno())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
