"""Which prompts are read in one forward pass: what requests share is read once, and little is padded."""

from rollbus.trainer.art_server.sampler.prefixes import BLOCK_TOKENS, PrefixIndex
from rollbus.trainer.art_server.sampler.requests import SamplerRequest

PREFILL_TOKENS = 8192
"""Padded prompt tokens read in one forward pass, so that a burst of long prompts does not exhaust memory."""
FULL_TOKENS = 128
"""Tokens from which a pass on a CPU gets no faster per token: with so many, requests that need padding wait."""


def plan_wave(unread: list[SamplerRequest], prefixes: PrefixIndex) -> tuple[list[SamplerRequest], list[SamplerRequest]]:
    """Split prompts into those to read now, and those that will share more with one of these than with any row.

    Of requests with the same prompt, the first has the others as its twins.
    """
    wave, later, planned = list[SamplerRequest](), list[SamplerRequest](), PrefixIndex()
    first: dict[tuple[int, ...], SamplerRequest] = {}
    for request in unread:
        if request.parameters.scores_prompt:
            wave.append(request)  # a copied beginning would have no log-probs
            continue
        same = first.setdefault(tuple(request.prompt), request)
        if same is not request:
            same.twins.append(request)
            continue
        shared = prefixes.find(request.version, request.prompt)
        if planned.find(request.version, request.prompt).tokens >= shared.tokens + BLOCK_TOKENS:
            later.append(request)
        else:
            request.shared = shared
            wave.append(request)
            planned.hold(request.slot, request.version, request.prompt)
    return wave, later


def batch_prompts(requests: list[SamplerRequest], full_tokens: int) -> list[list[SamplerRequest]]:
    """Prompts of similar length together, each batch within PREFILL_TOKENS of padded tokens, shared ones included."""
    batches: list[list[SamplerRequest]] = []
    for request in sorted(requests, key=_count_unread):
        if batches and _fits(batches[-1], request, full_tokens):
            batches[-1].append(request)
        else:
            batches.append([request])
    return batches


def _fits(batch: list[SamplerRequest], longer: SamplerRequest, full_tokens: int) -> bool:
    """Whether a longer request may join: there is room, and the pass is short, or hardly grows by padding."""
    rows, longest = len(batch) + 1, max(len(request.prompt) for request in (*batch, longer))
    tokens = sum(map(_count_unread, batch))
    padding = rows * _count_unread(longer) - tokens - _count_unread(longer)
    return longest * rows <= PREFILL_TOKENS and (tokens < full_tokens or padding <= tokens // 8)


def _count_unread(request: SamplerRequest) -> int:
    return len(request.prompt) - request.shared.tokens
