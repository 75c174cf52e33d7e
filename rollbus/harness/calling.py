"""Call what users give: sync or async, found by `module:name`, with only the keyword arguments that it takes."""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rollbus.schemas.errors import ConfigurationError


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call and await; a sync function runs in a thread, inside the same episode."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(target):
        return await function(*args, **kwargs)
    context = contextvars.copy_context()
    result = await asyncio.to_thread(context.run, functools.partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def accepted(function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return those of the keyword arguments that a function has parameters for."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def find(path: str, *, what: str) -> Any:
    """Return the object at `module:name`; raises ConfigurationError."""
    module_name, separator, name = path.partition(":")
    if not separator or not name:
        raise ConfigurationError(f"{what}: {path!r} must be written as module:name")
    try:
        found: Any = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module of the user's may raise anything
        raise ConfigurationError(
            f"{what}: {path!r} cannot be imported ({type(error).__name__}: {error}); it must be next to the "
            "configuration file, in PYTHONPATH or be installed"
        ) from error
    return found
