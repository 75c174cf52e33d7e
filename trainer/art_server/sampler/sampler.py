"""Generate for many requests at once: prompts in, tokens with their log-probs and policy version out.

One thread steps all requests together; they join and leave between steps. Those that wait join by priority, then in the
order in which they came. A request is bound to one weight version when it is submitted and finishes on it. A version
stays loaded while a request uses it, while it is pinned (serving), and while it is among the newest few or the last few
loaded.
"""

import logging
import random
import threading
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn

from rollbus.runtime.tasks import start_thread
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.sampler.cache import CachePool
from rollbus.trainer.art_server.sampler.decoding import CudaRecorder, Decoding
from rollbus.trainer.art_server.sampler.growing_text import GrowingText, find_stop
from rollbus.trainer.art_server.sampler.prefixes import Shared
from rollbus.trainer.art_server.sampler.requests import (
    Alternatives,
    FinishReason,
    Generation,
    OnToken,
    SamplerRequest,
    SamplingParameters,
    UnknownVersionError,
)
from rollbus.trainer.art_server.sampler.sampling import choose
from rollbus.trainer.art_server.sampler.waves import FULL_TOKENS, PREFILL_TOKENS, batch_prompts, plan_wave
from rollbus.trainer.backends.model_settings import LogprobsMode

logger = logging.getLogger(__name__)

SCORED_AT_ONCE = 256
"""Prompt positions projected to the vocabulary at once: 50 MB of logits where it has 50,000 tokens."""


class Sampler:
    """The thread, the key-value rows and the loaded versions of one model."""

    gives_alternatives = True

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Any,
        *,
        max_rows: int = 64,
        keep_versions: int = 4,
        logprobs_mode: LogprobsMode = "raw",
        threads: int = 1,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.config: ModelConfig = config
        self.logprobs_mode: LogprobsMode = logprobs_mode
        self.steps = 0
        """Decoding and prompt passes made so far; with `tokens` it shows how well requests share steps."""
        self.tokens = 0
        self.reused_tokens = 0
        """Prompt tokens copied from other requests instead of read."""
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids | {int(tokenizer.eos_token_id)}
        self._keep = keep_versions
        self.threads = threads
        """Of one step on a CPU; may be changed at any time."""
        self._device = torch.device(device)
        self._full_tokens = FULL_TOKENS if self._device.type == "cpu" else PREFILL_TOKENS
        self._pool = CachePool(config, max_rows, device=self._device, dtype=dtype)
        recorder = CudaRecorder() if self._device.type == "cuda" else None
        self._decoding = Decoding(self._pool, self._device, recorder)
        self._models: dict[int, nn.Module] = {}
        self._users: dict[int, int] = {}
        self._pinned: set[int] = set()
        self._recent: deque[int] = deque(maxlen=keep_versions)
        """The versions loaded last, also old ones that a client asked for."""
        self._waiting: deque[SamplerRequest] = deque()
        self._active: list[SamplerRequest] = []
        self._closed = False
        self._wake = threading.Condition()
        self._thread = start_thread(self._run, "sampler", is_over=lambda: self._closed)

    def load(self, version: int, model: nn.Module) -> None:
        """Serve `model` as `version` from now on. The module is taken over: do not train it."""
        model.requires_grad_(False).eval().to(self._device)
        self._pool.attach(model)
        with self._wake:
            self._models[version] = model
            self._users.setdefault(version, 0)
            self._recent.append(version)
            self._retire()

    def pin(self, versions: Iterable[int]) -> None:
        """Keep these versions loaded at any age, in place of those pinned before."""
        with self._wake:
            self._pinned = set(versions)
            self._retire()

    def loaded(self) -> tuple[int, ...]:
        with self._wake:
            return tuple(sorted(self._models))

    def count_rows(self) -> tuple[int, int]:
        """Return how many completions are being generated, and how many wait for a row."""
        with self._wake:
            return len(self._active), len(self._waiting)

    def submit(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        version: int,
        on_token: OnToken | None = None,
    ) -> Future[Generation]:
        """Queue one completion. The future's cancel() frees its row at the next step.

        Raises UnknownVersionError; `on_token` is called in the sampler's thread.
        """
        longest = self.config.max_tokens
        if not prompt or len(prompt) + parameters.max_tokens > longest or parameters.max_tokens < 1:
            raise ValueError(
                f"{len(prompt)} prompt tokens and {parameters.max_tokens} more do not fit 1 to {longest} tokens"
            )
        request = SamplerRequest(prompt, parameters, version, Future(), on_token, random.Random(parameters.seed).random)
        request.text = GrowingText(self._tokenizer) if parameters.stop else None
        with self._wake:
            if self._closed:
                raise RuntimeError("the sampler is closed")
            if version not in self._models:
                raise UnknownVersionError(version)
            self._users[version] += 1
            insort(self._waiting, request, key=_priority)
            self._wake.notify()
        return request.future

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout=30)

    def _retire(self) -> None:
        """Forget versions that are old, idle and not pinned. Called with the lock held."""
        kept_versions = {*sorted(self._models)[-self._keep :], *self._recent, *self._pinned}
        for version in [version for version in self._models if version not in kept_versions]:
            if self._users[version] == 0:
                del self._models[version], self._users[version]

    def _run(self) -> None:
        threads = 0
        with torch.inference_mode():
            while True:
                with self._wake:
                    while not (self._waiting or self._active or self._closed):
                        self._wake.wait()
                    if self._closed:
                        break
                    joined = self._take_waiting()
                if threads != self.threads:
                    torch.set_num_threads(threads := self.threads)
                try:
                    self._advance(joined)
                except BaseException as error:
                    logger.exception("a decoding step failed; its requests are answered with the error")
                    self._fail_all([*joined, *self._active], error)
        self._fail_all([*self._waiting, *self._active], RuntimeError("the model service is shutting down"))

    def _take_waiting(self) -> list[SamplerRequest]:
        """Take as many as there are rows for; drop those canceled while they waited."""
        joined: list[SamplerRequest] = []
        while self._waiting and len(joined) < self._pool.free_rows:
            request = self._waiting.popleft()
            if request.future.cancelled():
                self._release(request)
            else:
                joined.append(request)
        return joined

    def _advance(self, joined: list[SamplerRequest]) -> None:
        """One step of every request: those already running decode one token, the new ones read their prompt."""
        running = self._active
        self._active = [*running, *joined]
        rows = self._pool.take([(request.version, request.prompt) for request in joined])
        for request, row in zip(joined, rows, strict=True):
            request.slot = row
        for version in sorted({request.version for request in self._active}):
            model = self._models[version]
            unread = [request for request in joined if request.version == version]
            while unread:
                wave, unread = plan_wave(unread, self._pool.prefixes)
                self._read_wave(model, wave)
            if batch := [request for request in running if request.version == version]:
                self._sample(batch, self._decode(model, batch))
        self._answer_finished()

    def _read_wave(self, model: nn.Module, wave: list[SamplerRequest]) -> None:
        """Read prompts and sample the first token of each: whole ones, then what follows a shared beginning."""
        sharing = [request for request in wave if request.shared.tokens]
        self._pool.copy_prefixes({request.slot: request.shared for request in sharing})
        for batch in batch_prompts(
            [unshared_request for unshared_request in wave if not unshared_request.shared.tokens], self._full_tokens
        ):
            self._sample_first(batch, self._read_prompts(model, batch))
        for batch in batch_prompts(sharing, self._full_tokens):
            self._sample_first(batch, self._read_endings(model, batch))

    def _sample_first(self, batch: list[SamplerRequest], logits_B_V: Tensor) -> None:
        """Sample the first token of requests whose prompts were read, and of their twins."""
        everyone = [answer_request for request in batch for answer_request in (request, *request.twins)]
        self._pool.copy_prefixes(
            {twin.slot: Shared(request.slot, len(request.prompt)) for request in batch for twin in request.twins}
        )
        counts_B = torch.tensor([1 + len(request.twins) for request in batch], device=self._device)
        self._sample(everyone, logits_B_V.repeat_interleave(counts_B, dim=0))
        for request in batch:
            self.reused_tokens += request.shared.tokens + len(request.twins) * len(request.prompt)
            request.twins.clear()
        for request in everyone:
            self._pool.prefixes.hold(request.slot, request.version, request.prompt)

    def _read_endings(self, model: nn.Module, batch: list[SamplerRequest]) -> Tensor:
        """Logits [B, V] after each prompt, whose beginnings the rows hold already."""
        endings = [list(request.prompt[request.shared.tokens :]) for request in batch]
        longest_ending, longest_prompt = max(map(len, endings)), max(len(request.prompt) for request in batch)
        padded = [[*ending, *[0] * (longest_ending - len(ending))] for ending in endings]
        token_ids_B_T = torch.tensor(padded, device=self._device)
        starts_B_1 = torch.tensor([[request.shared.tokens] for request in batch], device=self._device)
        positions_B_T = starts_B_1 + torch.arange(longest_ending, device=self._device)
        positions_B_T.clamp_max_(self.config.max_tokens - 1)  # of padding: no prompt reaches it
        mask_B_T_S = torch.arange(longest_prompt, device=self._device) <= positions_B_T[:, :, None]
        self._pool.aim(self._slots(batch), positions_B_T, length=longest_prompt)
        hidden_B_T_D = trunk(model, token_ids_B_T, positions_B_T=positions_B_T, mask_B_T_S=mask_B_T_S)
        last_B = torch.tensor([len(ending) - 1 for ending in endings], device=self._device)
        return head(model, hidden_B_T_D[torch.arange(len(batch), device=self._device), last_B])

    def _read_prompts(self, model: nn.Module, batch: list[SamplerRequest]) -> Tensor:
        """Logits [B, V] after each prompt."""
        longest = max(len(request.prompt) for request in batch)
        padded = [[*request.prompt, *[0] * (longest - len(request.prompt))] for request in batch]
        token_ids_B_T = torch.tensor(padded, device=self._device)
        positions_1_T = torch.arange(longest, device=self._device)[None]
        positions_B_T = positions_1_T.expand(len(batch), longest)
        causal_1_T_T = positions_1_T[:, :, None] >= positions_1_T[:, None, :]
        self._pool.aim(self._slots(batch), positions_B_T, length=0)
        hidden_B_T_D = trunk(model, token_ids_B_T, positions_B_T=positions_B_T, mask_B_T_S=causal_1_T_T)
        for request, hidden_T_D in zip(batch, hidden_B_T_D, strict=True):
            if request.parameters.scores_prompt:
                request.prompt_logprobs = self._score_prompt(model, hidden_T_D, request.prompt)
        last_B = torch.tensor([len(request.prompt) - 1 for request in batch], device=self._device)
        return head(model, hidden_B_T_D[torch.arange(len(batch), device=self._device), last_B])

    def _score_prompt(self, model: nn.Module, hidden_T_D: Tensor, prompt: Sequence[int]) -> tuple[float, ...]:
        """Return the log-prob of each token after the first; few positions at a time, for the vocabulary is wide."""
        logprobs: list[float] = []
        for start in range(0, len(prompt) - 1, SCORED_AT_ONCE):
            targets = prompt[start + 1 : start + 1 + SCORED_AT_ONCE]
            logprobs_C_V = torch.log_softmax(head(model, hidden_T_D[start : start + len(targets)]), dim=-1)
            targets_C = torch.tensor(targets, device=self._device)
            logprobs += logprobs_C_V.gather(1, targets_C[:, None])[:, 0].tolist()
        return tuple(logprobs)

    def _decode(self, model: nn.Module, batch: list[SamplerRequest]) -> Tensor:
        """Logits [B, V] after each request's newest token."""
        return self._decoding.decode(
            model,
            [request.token_ids[-1] for request in batch],
            [request.slot for request in batch],
            [len(request.prompt) + len(request.token_ids) - 1 for request in batch],
        )

    def _slots(self, batch: list[SamplerRequest]) -> Tensor:
        return torch.tensor([request.slot for request in batch], device=self._device)

    def _sample(self, batch: list[SamplerRequest], logits_B_V: Tensor) -> None:
        self.steps += 1
        self.tokens += len(batch)
        settings = [request.parameters for request in batch]
        chosen = choose(
            logits_B_V,
            torch.tensor([setting.temperature for setting in settings], device=self._device),
            torch.tensor([setting.top_p for setting in settings], device=self._device, dtype=torch.float64),
            torch.tensor([request.random_number() for request in batch], device=self._device, dtype=torch.float64),
            nucleus=any(setting.top_p < 1 for setting in settings),
            mode=self.logprobs_mode,
        )
        most = max(setting.top_logprobs for setting in settings)
        most_probable = chosen.logprobs_B_V.topk(most, dim=-1) if most else None
        token_ids, logprobs = chosen.token_ids_B.tolist(), chosen.logprobs_B.tolist()
        for index, request in enumerate(batch):
            request.token_ids.append(token_ids[index])
            request.logprobs.append(logprobs[index])
            alternatives: Alternatives = ()
            if most_probable is not None and (count := request.parameters.top_logprobs):
                pairs = zip(most_probable.indices[index].tolist(), most_probable.values[index].tolist(), strict=True)
                alternatives = tuple(pairs)[:count]
                request.alternatives.append(alternatives)
            if request.on_token is not None:
                request.on_token(token_ids[index], logprobs[index], alternatives)

    def _answer_finished(self) -> None:
        """Answer the requests that are finished; an error of the user's tokenizer is answered too."""
        unfinished: list[SamplerRequest] = []
        for request in self._active:
            try:
                finished = self._answer_if_finished(request)
            except Exception as error:
                logger.exception("the text of an answer failed; its request is answered with the error")
                self._answer_with_error(request, error)
                finished = True
            if not finished:
                unfinished.append(request)
        self._active = unfinished

    def _answer_if_finished(self, request: SamplerRequest) -> bool:
        """Answer and release the request if its newest token ended it."""
        parameters = request.parameters
        reason: FinishReason
        text: str | None = None
        cut: int | None = None
        has_ended = request.token_ids[-1] in self._stop_ids and not parameters.ignore_eos
        if request.text is not None and not has_ended:
            request.text.add(request.token_ids[-1])
            if find_stop(request.text.text, parameters.stop) is not None:
                text = self._decode_text(request)
                cut = find_stop(text, parameters.stop)
        if has_ended or cut is not None:
            reason = "stop"
        elif len(request.token_ids) >= parameters.max_tokens:
            reason = "length"
        elif request.future.cancelled():
            reason = "abort"
        else:
            return False
        text = (self._decode_text(request) if text is None else text)[:cut]
        answer = Generation(
            tuple(request.token_ids),
            tuple(request.logprobs),
            text,
            reason,
            request.version,
            tuple(request.alternatives),
            request.prompt_logprobs,
        )
        self._release(request)
        if request.future.set_running_or_notify_cancel():
            request.future.set_result(answer)
        return True

    def _decode_text(self, request: SamplerRequest) -> str:
        decoded: str = self._tokenizer.decode(request.token_ids, skip_special_tokens=True)
        return decoded

    def _release(self, request: SamplerRequest) -> None:
        """Free its slot and its version; harmless to repeat."""
        if request.released:
            return
        request.released = True
        if request.slot >= 0:
            # the model has not read the newest token
            cached_ids = [*request.prompt, *request.token_ids[:-1]] if request.token_ids else []
            self._pool.give_back(request.slot, request.version, cached_ids)
            request.slot = -1
        with self._wake:
            self._users[request.version] -= 1
            self._retire()

    def _fail_all(self, requests: list[SamplerRequest], error: BaseException) -> None:
        for request in requests:
            self._answer_with_error(request, error)
        self._active = []

    def _answer_with_error(self, request: SamplerRequest, error: BaseException) -> None:
        self._release(request)
        if not request.future.done() and request.future.set_running_or_notify_cancel():
            request.future.set_exception(error)


def _priority(request: SamplerRequest) -> int:
    return request.parameters.priority
