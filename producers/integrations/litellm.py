"""LiteLLM: a logger that records every call, with tokens where the server gave them.

    litellm.callbacks.append(RollbusLogger(rb))
    with rb.episode(task="stock"):
        litellm.completion(model="openai/agent", messages=messages, client=rb.wrap(OpenAI(base_url=...)))

With a wrapped `client` beneath, that client asks for tokens and records them, and the logger does nothing. Without one
the logger records what LiteLLM's answer holds: ask for `logprobs=True` and `extra_body={"return_token_ids": True}` to
have tokens in it (a stream's are lost in LiteLLM). LiteLLM may call back twice, late, from another thread, or never, as
where its event loop has ended: a call is known by its `litellm_call_id`, its episode is the one that was current when
it began, and it has a writer of its own there that the episode's end waits for.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from rollbus.producers.capture.responses import RESPONSES
from rollbus.producers.episode import context
from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.functions import current_function
from rollbus.producers.recorder import Recorder
from rollbus.producers.turns.answer import ServerAnswer, answer_of, ids_of
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange

MAX_OPEN = 10_000
"""Calls kept whose end has not come; beyond it the oldest is taken as never answered."""
LATE_S = 300.0
"""After so long LiteLLM calls back no more: longer than it waits for an answer by default would keep episodes open."""
RECORDED_CALLS = ("completion", "acompletion", "text_completion", "atext_completion", "responses", "aresponses")
"""Kinds of calls that are turns; embeddings, images and the like are not."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    late: Episode
    """The call's own writer."""
    function: str
    model_call: context.ModelCall
    request: Mapping[str, Any]
    began_s: float

    def abandon(self) -> None:
        """Record that its answer was not seen: the writer closes, or LiteLLM never called back."""
        self.model_call.on_captured = None
        if not self.model_call.captured:
            self.late.remove_open_answer(self)
            exchange = Exchange(request=self.request, answer=ServerAnswer(), withheld=NOT_CAPTURED, hook="litellm")
            self.late.record(exchange, self.function)
        self.late.close_writer(even_if_silent=True)


class RollbusLogger(CustomLogger):
    """Records LiteLLM's calls into the episode that was current when they began."""

    def __init__(self, recorder: Recorder) -> None:
        """Record with this recorder."""
        super().__init__()
        self._recorder = self.recorder = recorder
        # Without a lock: each step is one call into C, and a lock might be held by a thread that a fork leaves behind.
        self._open: OrderedDict[str, _Call] = OrderedDict()

    def log_pre_api_call(self, model: str, messages: Any, kwargs: Mapping[str, Any]) -> None:
        """A call begins, in the caller's context."""
        self._recorder.guard.call("hook", self._begin, kwargs, default=None)

    async def async_post_call_success_deployment_hook(
        self, request_data: Mapping[str, Any], response: Any, call_type: Any
    ) -> None:
        """It has an answer, in the caller's own task: `asyncio.run` may end before LiteLLM calls back otherwise."""
        details = getattr(request_data.get("litellm_logging_obj"), "model_call_details", None)
        if details is not None:
            began = details.get("start_time") or datetime.now()
            self._recorder.guard.call("hook", self._end, details, response, began, datetime.now(), default=None)

    def log_success_event(self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """It has an answer; of a stream, the whole of it."""
        self._recorder.guard.call("hook", self._end, kwargs, response_obj, start_time, end_time, default=None)

    async def async_log_success_event(
        self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """It has an answer, and was asked for asynchronously."""
        self.log_success_event(kwargs, response_obj, start_time, end_time)

    def log_failure_event(self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """It has failed."""
        self._recorder.guard.call("hook", self._fail, kwargs, default=None)

    async def async_log_failure_event(
        self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """It has failed, and was asked for asynchronously."""
        self.log_failure_event(kwargs, response_obj, start_time, end_time)

    def _begin(self, kwargs: Mapping[str, Any]) -> None:
        episode, kind = self._recorder.current_episode(), kwargs.get("call_type", RECORDED_CALLS[0])
        if kind not in RECORDED_CALLS:
            self._recorder.counts.add("calls_unobserved")
            return
        if episode is None:
            if self._recorder.episodes.task_of_calls is None:
                self._recorder.outbox.count_call_outside()
            return
        late = self._recorder.episodes.join(episode.id, episode.started_at_ms)
        model_call = context.watch_call(on_captured=lambda: self._discard_writer(episode, late))
        call = _Call(late, current_function(), model_call, _request(kwargs), time.monotonic())
        late.add_open_answer(call)
        self._open[str(kwargs["litellm_call_id"])] = call
        self._abandon_late()

    def _discard_writer(self, episode: Episode, late: Episode) -> None:
        """Do without a writer of its own: a wrapped client records the call."""
        late.forget_open_answers()
        episode.discard_writer(late)

    def _abandon_late(self) -> None:
        """Close the writers of calls that LiteLLM has forgotten."""
        latest_s = time.monotonic() - LATE_S
        while self._open and (len(self._open) > MAX_OPEN or next(iter(self._open.values())).began_s < latest_s):
            self._open.popitem(last=False)[1].abandon()

    def _close_call(self, kwargs: Mapping[str, Any]) -> _Call | None:
        call = self._open.pop(str(kwargs.get("litellm_call_id")), None)
        if call is not None:
            call.model_call.on_captured = None  # what its context captures from now on is another call
            call.late.remove_open_answer(call)
        return call

    def _fail(self, kwargs: Mapping[str, Any]) -> None:
        call = self._close_call(kwargs)
        if call is not None and not call.model_call.captured:
            call.late.close_writer(even_if_silent=True)

    def _end(self, kwargs: Mapping[str, Any], response: Any, start: Any, end: Any) -> None:
        whole = kwargs.get("complete_streaming_response") or kwargs.get("async_complete_streaming_response")
        if kwargs.get("stream") and whole is None:
            return  # called for a single chunk
        call = self._close_call(kwargs)
        if call is None or call.model_call.captured:
            return
        try:
            answer = _answer(whole or response)
            has_tokens = any(choice.token_ids or choice.entries for choice in answer.choices)
            exchange = Exchange(
                request=_request(kwargs),
                answer=answer,
                withheld=None if has_tokens else NOT_CAPTURED,  # gives way to what the HTTP client has seen of it
                streamed=bool(kwargs.get("stream")),
                latency_ms=int((end - start).total_seconds() * 1000),
                logprob_mode=self._recorder.settings.logprob_mode,
                hook="litellm",
                server=str((kwargs.get("litellm_params") or {}).get("api_base") or ""),
            )
            call.late.record(exchange, call.function)
        finally:  # the episode's end waits for its writer
            call.late.close_writer(even_if_silent=True)
        if call.model_call.above is not None:
            call.model_call.above.mark_captured()


def _request(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    parameters = dict(kwargs.get("optional_params") or {})
    return {**parameters, "model": kwargs.get("model"), "messages": kwargs.get("messages") or ()}


def _answer(response: Any) -> ServerAnswer:
    """Return the neutral form; LiteLLM moves a choice's unknown fields, and so its token ids, to one side."""
    if hasattr(response, "output"):
        return RESPONSES.read_response(response)
    answer = answer_of(response)
    ids = [(getattr(choice, "provider_specific_fields", None) or {}).get("token_ids") for choice in response.choices]
    choices = zip(answer.choices, ids, strict=True)
    return replace(
        answer,
        choices=tuple(
            replace(answer_choice, token_ids=answer_choice.token_ids or ids_of(choice_ids))
            for answer_choice, choice_ids in choices
        ),
    )
