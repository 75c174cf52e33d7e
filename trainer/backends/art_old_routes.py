"""The routes of released ART servers, so that ART's and NeMo's existing clients can use ours.

    POST /register, /_get_step, /_prepare_backend_for_training, /_train_model (answers NDJSON), /_log,
         /_delete_checkpoint_files (also as /_delete_checkpoints), /close

These clients let ART compute the advantages and are always served the newest weights. A trajectory is trained on its
recorded ids. Where a client sent only sampled ids, its prompts are rendered by the chat template here: a guess at what
the model was shown, so the step is marked by `rendered_prompts` in its metrics and in the checkpoint, and a call that
mixes such prompts with recorded ones is refused.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from art import types
from art.trajectories import LegacyHistory, Trajectory, TrajectoryGroup
from openai.types.chat.chat_completion import Choice
from starlette.responses import JSONResponse, StreamingResponse

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.appending import append_line
from rollbus.trainer.service.art_service import GRADIENT_STEPS
from rollbus.trainer.service.retention import BASE_VERSION
from rollbus.trainer.service.tokenizer import render_chat

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from rollbus.trainer.backends.art_local import ArtLocal

TOKEN_PREFIX = "token_id:"


def routes(backend: ArtLocal) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
    old = _OldRoutes(backend)
    return [
        ("POST", "/register", old.register),
        ("POST", "/_get_step", old.get_step),
        ("POST", "/_prepare_backend_for_training", old.prepare),
        ("POST", "/_train_model", old.train),
        ("POST", "/_log", old.log),
        ("POST", "/_delete_checkpoint_files", old.delete_checkpoints),
        ("POST", "/_delete_checkpoints", old.delete_checkpoints),
        ("POST", "/close", old.close),
    ]


class _OldRoutes:
    def __init__(self, backend: ArtLocal) -> None:
        self._backend = backend
        self._updates: set[asyncio.Future[None]] = set()

    async def register(self, request: Request) -> Response:
        self._check_model(await request.json())
        return JSONResponse(None)

    async def get_step(self, request: Request) -> Response:
        self._check_model(await request.json())
        return JSONResponse(self._backend.service.store.numbers()[-1])

    async def prepare(self, request: Request) -> Response:
        self._check_model((await request.json())["model"])
        service = self._backend.service
        return JSONResponse([service.base_url, service.settings.api_key or "default"])

    async def delete_checkpoints(self, request: Request) -> Response:
        """Remove all but those named, the base model, the serving one and what the next batch builds on.

        Where a removed one came from stays known.
        """
        body = await request.json()
        self._check_model(body.get("model", body))
        versions = await self._backend.versions()
        keep = {BASE_VERSION, versions.serving, versions.head, *map(int, body.get("steps_to_keep", ()))}
        store = self._backend.service.store
        async with self._backend.updates_held():
            for version in set(store.numbers()) - keep:
                await asyncio.to_thread(store.retire, version)
        return JSONResponse(None)

    async def log(self, request: Request) -> Response:
        """Keep what a client reports, a line per call, beside the checkpoints; nothing here reads it."""
        body = await request.json()
        self._check_model(body["model"])
        split = re.sub(r"\W", "_", str(body.get("split", "val")))
        folder = self._backend.service.store.directory.parent / "reported"
        folder.mkdir(exist_ok=True)
        line = json.dumps(body["trajectory_groups"]).encode()
        await asyncio.to_thread(append_line, folder / f"{split}.jsonl", line)
        return JSONResponse(None)

    async def close(self, request: Request) -> Response:
        """A client is done; the server goes on serving others."""
        return JSONResponse(None)

    async def train(self, request: Request) -> Response:
        body = await request.json()
        self._check_model(body["model"])
        tokenizer = self._backend.service.tokenizer
        prompts = _Prompts(tokenizer)
        groups = [_group(group, prompts) for group in body["trajectory_groups"]]
        prompts.check_not_mixed()
        lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(line: dict[str, Any] | None) -> None:
            loop.call_soon_threadsafe(lines.put_nowait, line)

        update = asyncio.ensure_future(
            self._backend.on_art(
                self._train(groups, body.get("config") or {}, body.get("dev_config") or {}, prompts.rendered, put)
            )
        )
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)
        return StreamingResponse(_ndjson(lines), media_type="application/x-ndjson")

    async def _train(
        self,
        groups: list[TrajectoryGroup],
        config: dict[str, Any],
        dev_config: dict[str, Any],
        rendered: int,
        put: Callable[[dict[str, Any] | None], None],
    ) -> None:
        """One update, on ART's loop. The last line holds the new step, or the error."""
        backend = self._backend
        known = {name: value for name, value in config.items() if name in types.TrainConfig.model_fields}
        try:
            async with backend.one_update:
                backend.service.remarks = {"rendered_prompts": rendered}
                async for metrics in backend.art_backend._train_model(
                    backend.model,
                    groups,
                    types.TrainConfig(**known),
                    dev_config,  # type: ignore[arg-type]
                ):
                    steps = int(metrics.get(GRADIENT_STEPS, 0))
                    put({**metrics, "num_gradient_steps": steps, "rendered_prompts": rendered})
            newest = backend.service.store.numbers()[-1]
            if backend.own is not None:
                backend.own.note(newest, {"version": newest, "parent": newest - 1, "rendered_prompts": rendered})
            await backend._promote(newest, rollback=True)
        except Exception as error:
            put({"error": f"{type(error).__name__}: {error}", "num_gradient_steps": 0})
        finally:
            backend.service.remarks = {}
            put(None)

    def _check_model(self, model: dict[str, Any]) -> None:
        if model.get("name") != self._backend.settings.model:
            raise RejectedError(
                f"this server trains {self._backend.settings.model!r}, not {model.get('name')!r}; "
                "one server has one model"
            )


async def _ndjson(lines: asyncio.Queue[dict[str, Any] | None]) -> AsyncIterator[str]:
    while (line := await lines.get()) is not None:
        yield json.dumps(line) + "\n"


class _Prompts:
    """The prompts of one call: as recorded, or rendered here; `rendered` counts the latter."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.recorded = 0
        self.rendered = 0

    def of(self, choice: dict[str, Any], messages: list[dict[str, Any]], tools: Any) -> list[int]:
        if "prompt_token_ids" in choice:
            self.recorded += 1
            return list(choice["prompt_token_ids"])
        self.rendered += 1
        return render_chat(self._tokenizer, messages, tools)

    def check_not_mixed(self) -> None:
        if self.recorded and self.rendered:
            raise RejectedError(
                f"{self.recorded} choices bring their prompt_token_ids and {self.rendered} do not; those rendered "
                "here are never mixed with recorded ones: ask the endpoint for return_token_ids, or send the two apart"
            )


def _group(body: dict[str, Any], prompts: _Prompts) -> TrajectoryGroup:
    return TrajectoryGroup([_trajectory(trajectory, prompts) for trajectory in body["trajectories"]])


def _trajectory(body: dict[str, Any], prompts: _Prompts) -> Trajectory:
    reward = float(body["reward"])
    if not math.isfinite(reward):
        raise RejectedError(f"a trajectory has the reward {reward}, which would spoil every weight")
    histories = [body, *(body.get("additional_histories") or [])]
    first, *more = [_choices(history, prompts) for history in histories]
    return Trajectory(
        messages_and_choices=list(first),
        additional_histories=[LegacyHistory(messages_and_choices=list(choices)) for choices in more],
        reward=reward,
    )


def _choices(history: dict[str, Any], prompts: _Prompts) -> list[Choice]:
    """The trainable choices of a history, each with the ids it was shown and those it sampled."""
    messages: list[dict[str, Any]] = []
    choices: list[Choice] = []
    for item in history["messages_and_choices"]:
        if "finish_reason" not in item:
            messages.append(item)
            continue
        content = ((item.get("logprobs") or {}).get("content")) or []
        if content:
            if not all(math.isfinite(entry["logprob"]) for entry in content):
                raise RejectedError("a choice has a log-prob that is not finite")
            token_ids = item.get("token_ids") or [_token_id(entry["token"]) for entry in content]
            shown = prompts.of(item, messages, history.get("tools"))
            choices.append(Choice.model_validate({**item, "token_ids": token_ids, "prompt_token_ids": shown}))
        messages.append(item["message"])
    return choices


def _token_id(token: str) -> int:
    if not token.startswith(TOKEN_PREFIX):
        raise RejectedError(
            f"the log-probs name the token {token!r} as text; ask the endpoint for return_tokens_as_token_ids, "
            "or send token_ids"
        )
    return int(token.removeprefix(TOKEN_PREFIX))
