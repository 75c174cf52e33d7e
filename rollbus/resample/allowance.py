"""A client whose calls wait behind live traffic, and together sample no more than an attempt may.

Each call is limited to the rest beforehand.

It wraps `post`, which makes every call of an OpenAI client and of its copies. A call takes what it may sample and gives
back what it did not. One whose answer has no counts (a stream, a failure) gives nothing back. The client does
not repeat calls: a repeated one would sample again, uncounted.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from rollbus.runtime.http import PRIORITY_HEADER
from rollbus.schemas.errors import RejectedError

Client = TypeVar("Client")

LIMITS: Mapping[str, tuple[str, ...]] = {
    "/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/completions": ("max_tokens",),
    "/responses": ("max_output_tokens",),
}
"""By path of the API, the fields that limit what one call samples; the first is set if the caller set none."""
ANSWERS = ("n", "best_of")
"""Fields that say how many answers one call samples."""
BACKGROUND: Mapping[str, str] = {PRIORITY_HEADER: "1"}
"""Our model service begins live calls first. Other servers ignore the header."""


class Allowance:
    """What an attempt may still sample; shared by all its clients, in any thread."""

    def __init__(self, tokens: int | None) -> None:
        self.tokens_left = tokens
        """None without a limit."""
        self.unsure = False
        """Whether a call failed that may have been sampled all the same."""
        self._lock = threading.Lock()

    def take(self, body: dict[str, Any], fields: tuple[str, ...]) -> int:
        """Limit a call to what is left and return how much that is; raises RejectedError if nothing is."""
        answers = max(int(body.get(name) or 1) for name in ANSWERS)
        with self._lock:
            assert self.tokens_left is not None
            share = self.tokens_left // answers
            if share < 1:
                raise RejectedError(
                    f"the attempt may sample {self.tokens_left} more tokens, and a call wants {answers} answers; raise "
                    "the run's `resample.tokens_per_attempt`, or end the attempt sooner"
                )
            named_fields = [name for name in fields if body.get(name) is not None] or [fields[0]]
            for name in named_fields:
                limit = int(body.get(name) or 0)
                body[name] = min(limit, share) if limit > 0 else share  # some servers take -1 for no limit
            taken_tokens = answers * min(body[name] for name in named_fields)
            self.tokens_left -= taken_tokens
            return int(taken_tokens)

    def settle(self, taken_tokens: int, answer: Any) -> None:
        """Give back what a call did not sample, if its answer has counts."""
        usage = getattr(answer, "usage", None)
        counts = (getattr(usage, name, None) for name in ("completion_tokens", "output_tokens"))
        sampled = [count for count in counts if isinstance(count, int)]
        if taken_tokens and sampled:
            self._give_back(taken_tokens - max(sampled))  # a gateway that fills both may leave one at 0

    def failed(self, taken_tokens: int, error: BaseException) -> None:
        """Give back what a call took that the server refused; any other failure may come after sampling."""
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and 400 <= status < 500:
            self._give_back(taken_tokens)
        elif taken_tokens:
            self.unsure = True

    def _give_back(self, tokens: int) -> None:
        with self._lock:
            if self.tokens_left is not None:
                self.tokens_left += tokens


def limit_client(client: Client, allowance: Allowance) -> Client:
    """Return a twin of an OpenAI client, on the same connections, that stays within the allowance.

    Another client is returned as it is, or refused with TypeError if the attempt has a limit.
    """
    original = type(client)
    post = getattr(original, "post", None)
    if post is None:
        if allowance.tokens_left is None:
            return client
        raise TypeError(
            f"{original.__name__} has no method `post`: what it samples cannot be limited; give `Attempt.wrap` an "
            "openai.OpenAI or openai.AsyncOpenAI, or a run without a budget of tokens"
        )
    limiting = type(original.__name__, (original,), {"post": _within(post, allowance)})
    twin: Client = object.__new__(limiting)
    twin.__dict__.update(
        {name: value for name, value in vars(client).items() if getattr(value, "_client", None) is not client}
    )
    return twin


def _within(post: Callable[..., Any], allowance: Allowance) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(post):

        @functools.wraps(post)
        async def post_async(self: Any, path: str, **call: Any) -> Any:
            with _charge(path, call, allowance) as taken_tokens:
                answer = await post(self, path, **call)
            allowance.settle(taken_tokens, answer)
            return answer

        return post_async

    @functools.wraps(post)
    def post_sync(self: Any, path: str, **call: Any) -> Any:
        with _charge(path, call, allowance) as taken_tokens:
            answer = post(self, path, **call)
        allowance.settle(taken_tokens, answer)
        return answer

    return post_sync


@contextlib.contextmanager
def _charge(path: str, call: dict[str, Any], allowance: Allowance) -> Iterator[int]:
    """Take what a call may sample from the allowance, and report a failure to it."""
    taken_tokens = _limit(path, call, allowance)
    try:
        yield taken_tokens
    except BaseException as error:
        allowance.failed(taken_tokens, error)
        raise


def _limit(path: str, call: dict[str, Any], allowance: Allowance) -> int:
    """Limit a call that samples, and let the client make it once only; return what it may sample."""
    fields, options = LIMITS.get(path), call.get("options") or {}
    call["options"] = {**options, "headers": {**(options.get("headers") or {}), **BACKGROUND}}
    if fields is None or allowance.tokens_left is None:
        return 0
    call["body"] = dict(call.get("body") or {})
    call["options"]["max_retries"] = 0
    if extra := dict(options.get("extra_json") or {}):  # the client lets an `extra_body` win over the body
        call["body"] |= {name: extra.pop(name) for name in (*fields, *ANSWERS) if name in extra}
        call["options"]["extra_json"] = extra
    return allowance.take(call["body"], fields)
