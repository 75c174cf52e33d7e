"""Tell an ART server what it trains: every field of `backend` goes to the routes that its clients use.

GET  /health                           whether it is there
POST /register                         the model: name, project, base model, and how to load and serve it
POST /_prepare_backend_for_training    the server's part of that, where `server_config` is given
POST /_delete_checkpoint_files         with `delete_old_checkpoints`: all but what is served and built on
"""

from typing import Any

import httpx

from rollbus.nemo import troubles
from rollbus.nemo.components import ARTBackendConfig
from rollbus.runtime.http.loopback import may_use_proxy
from rollbus.schemas.errors import RejectedError

TIMEOUT_S = 600.0
"""A server may load the model first."""
HEALTH_S = 10.0


def model_json(backend: ARTBackendConfig) -> dict[str, Any]:
    """Return the model as ART's routes take it."""
    internal = {
        name: arguments.model_dump(exclude_none=True)
        for name, arguments in (("init_args", backend.init_args), ("engine_args", backend.engine_args))
        if arguments is not None
    }
    return {
        "name": backend.name,
        "project": backend.project,
        "base_model": backend.base_model,
        "config": None,
        "trainable": True,
        "_internal_config": {name: value for name, value in internal.items() if value},
    }


def is_healthy(url: str) -> bool:
    """Ask a health route; only 200 is healthy."""
    try:
        return httpx.get(url, timeout=HEALTH_S, trust_env=may_use_proxy(url)).status_code == 200
    except httpx.HTTPError:
        return False


async def register(backend: ARTBackendConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
    """Register the model; raises RejectedError for what the server refuses, UnavailableError without an answer."""
    headers = {"authorization": f"Bearer {backend.token}"} if backend.token else {}
    model = model_json(backend)
    async with httpx.AsyncClient(
        base_url=backend.url,
        headers=headers,
        timeout=TIMEOUT_S,
        transport=transport,
        trust_env=may_use_proxy(backend.url),
    ) as client:
        await _post(client, backend, "/register", model)
        if backend.server_config is not None:
            body = {"model": model, "config": backend.server_config}
            await _post(client, backend, "/_prepare_backend_for_training", body)
        if backend.delete_old_checkpoints:
            await _post(client, backend, "/_delete_checkpoint_files", {"model": model, "steps_to_keep": []})


async def _post(client: httpx.AsyncClient, backend: ARTBackendConfig, path: str, body: Any) -> None:
    try:
        answer = await client.post(path, json=body)
    except httpx.HTTPError as error:
        raise troubles.no_connection(backend.url, repr(error)) from error
    if answer.status_code >= 400:
        raise RejectedError(f"{backend.url}{path} refused model {backend.name!r}: {answer.text[:300]}")
