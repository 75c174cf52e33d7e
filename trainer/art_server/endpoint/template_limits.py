"""Run a model's chat template within a time: it is a program that came with the model, and every request runs it.

Its loops are Python's, so an exception ends them. What is one operation of Python's cannot be ended, so a template that
multiplies or raises to a power is refused: a text or a number of any size would be one such operation.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollbus.schemas.errors import ConfigurationError

TEMPLATE_S = 2.0
"""A chat of 10 MB takes a tenth of it."""
T = TypeVar("T")


class TemplateTooSlowError(Exception):
    """The template took too long."""


def require_bounded(template: str, place: str) -> None:
    """Raise ConfigurationError for a template with an operation whose size nothing bounds."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        tree = environment.parse(template)
    except TemplateError:
        return  # its own check names what is wrong; `{% generation %}` is transformers' own
    for kind, sign in ((nodes.Pow, "**"), (nodes.Mul, "*")):
        if any(True for _ in tree.find_all(kind)):
            raise ConfigurationError(
                f"the chat template of {place} uses `{sign}`: a text or a number of any size is one operation "
                "then; write it without"
            )


def within_time(function: Callable[[], T], limit_s: float | None = None) -> T:
    """Return what a function of plain Python returns; raises TemplateTooSlowError after a time, in this thread."""
    thread_id, lock, is_over, has_fired = threading.get_ident(), threading.Lock(), False, False

    def stop() -> None:
        nonlocal has_fired
        with lock:
            if not is_over:
                has_fired = True
                raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                raise_in(ctypes.c_ulong(thread_id), ctypes.py_object(TemplateTooSlowError))

    timer = threading.Timer(TEMPLATE_S if limit_s is None else limit_s, stop)
    timer.daemon = True
    timer.start()
    try:
        result = function()
        with lock:
            is_over = True
    finally:
        timer.cancel()
    if has_fired:  # the exception is on its way
        threading.Event().wait(0.1)
    return result
