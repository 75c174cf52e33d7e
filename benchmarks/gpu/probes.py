"""The probes of one server, in the order in which they build on each other.

Each takes the course so far and returns figures by name. `ProbeFailedError` says what is wrong.
"""

import asyncio
import random
import subprocess
import time
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.gpu.engines import Engine
from benchmarks.gpu.server import MODEL, Server
from rollbus.schemas.errors import ServiceError
from rollbus.schemas.records.tokens import encode_token_ids
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import TrainConfig

GROUPS, GROUP_SIZE, TOKENS = 4, 8, 16
"""A batch: prompts, answers to each, and tokens of an answer."""
KL_BOUND = 0.01
"""The largest `mismatch_kl` before an update: an importance ratio still corrects it without losing tokens."""
KILL_AFTER_S = 0.05
"""From the submission to the kill, so that the update is under way."""
POLL_S = 0.05

Figures = Mapping[str, float]


class ProbeFailedError(Exception):
    """A probe found something wrong."""


class NotApplicableError(Exception):
    """A probe does not apply here; the message says why."""


@dataclass(slots=True)
class Course:
    """One server on its way through the probes."""

    engine: Engine
    server: Server
    device: str
    model_url: str
    """Where answers are sampled: at the server, or at a vLLM next to it."""
    head: int = 0
    """The version that is sampled from and trained next."""
    steps: int = 0
    """Updates made so far; they name the batches."""


async def start(course: Course) -> Figures:
    """Start the server until it answers."""
    began = time.perf_counter()
    course.server.start()
    return {"seconds": time.perf_counter() - began}


async def sample(course: Course) -> Figures:
    """Sample 32 answers that share a prompt, twice; the second time is measured."""
    for _ in range(2):
        began = time.perf_counter()
        answers = await _ask(course, course.head, prompts=1, answers=GROUPS * GROUP_SIZE)
        seconds = time.perf_counter() - began
    return {"tokens_per_s": sum(len(answer.token_ids) for answer in answers) / seconds}


async def update(course: Course) -> Figures:
    """Make one GRPO step from answers of version 0: the sampler's log-probs are the learner's."""
    return await _step(course)


async def update_again(course: Course) -> Figures:
    """Make a step from answers of the new version: new weights reach the sampler, or log-probs would differ."""
    return await _step(course)


async def roll_back(course: Course) -> Figures:
    """Serve the base model again, and train from it next."""
    client = course.server.client()
    try:
        if not (await client.capabilities()).rolls_back:
            raise NotApplicableError("this engine serves and trains the newest version only")
        began = time.perf_counter()
        await client.promote(0, rollback=True)
        seconds = time.perf_counter() - began
        versions = await client.versions()
    finally:
        await client.close()
    if (versions.head, versions.serving) != (0, 0):
        raise ProbeFailedError(
            f"after a rollback to 0 the server trains from {versions.head} and serves {versions.serving}"
        )
    course.head = 0
    return {"seconds": seconds}


async def kill_and_resume(course: Course) -> Figures:
    """Kill the server during an update and submit the batch again: the batch must become one version."""
    request = _batch(course, "killed", await _ask(course, course.head))
    client = course.server.client()
    versions_before = len((await client.versions()).known)
    await client.submit(request)
    await asyncio.sleep(KILL_AFTER_S)
    await client.close()
    course.server.kill()
    began = time.perf_counter()
    course.server.start()
    client = course.server.client()
    try:
        await client.submit(request)
        result = await client.wait(request.batch_hash, POLL_S)
        versions = await client.versions()
    finally:
        await client.close()
    course.head = result.version
    versions_of_batch = [version for version in versions.known if version.batch_hash == request.batch_hash]
    if result.state != "completed" or len(versions_of_batch) != 1 or len(versions.known) > versions_before + 1:
        raise ProbeFailedError(
            f"after the kill the batch is {result.state}, in {len(versions_of_batch)} versions of {len(versions.known)}"
        )
    return {"seconds_to_result": time.perf_counter() - began}


Probe = Callable[[Course], Coroutine[Any, Any, Figures]]
PROBES: tuple[Probe, ...] = (start, sample, update, update_again, roll_back, kill_and_resume)


async def _step(course: Course) -> Figures:
    base = course.head
    request = _batch(course, f"step-{course.steps}", await _ask(course, base))
    client = course.server.client()
    try:
        began = time.perf_counter()
        await client.submit(request)
        result = await client.wait(request.batch_hash, POLL_S)
        seconds = time.perf_counter() - began
    finally:
        await client.close()
    if result.state != "completed" or result.version == base:
        raise ProbeFailedError(f"the update of version {base} ended as {result.state} at version {result.version}")
    course.head, course.steps = result.version, course.steps + 1
    measured = {
        name: result.metrics[name] for name in ("logprob_difference_max", "mismatch_kl") if name in result.metrics
    }
    _require_agreement(measured, course.engine.logprob_bound)
    return {"seconds": seconds, **measured, "peak_gb": peak_gb(course)}


def _require_agreement(measured: Figures, logprob_bound: float) -> None:
    for name, bound in (("logprob_difference_max", logprob_bound), ("mismatch_kl", KL_BOUND)):
        if not measured.get(name, 0.0) <= bound:
            raise ProbeFailedError(
                f"sampler and learner differ at the same weights: {name} {measured[name]:.2g}, at most {bound:g}"
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """What was sampled."""

    prompt: int
    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]


async def _ask(course: Course, version: int, prompts: int = GROUPS, answers: int = GROUP_SIZE) -> list[Answer]:
    """Sample so many answers to each of so many prompts, all at once."""
    async with AsyncOpenAI(base_url=course.model_url, api_key="none", timeout=600, max_retries=2) as client:
        requests = [ask_once(client, f"{MODEL}@{version}", prompt) for prompt in range(prompts) for _ in range(answers)]
        return list(await asyncio.gather(*requests))


async def ask_once(client: AsyncOpenAI, model: str, prompt: int) -> Answer:
    """Sample one answer with its ids and log-probs, as the recorder asks for them."""
    reply: Any = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"choose a letter {prompt}"}],
        max_tokens=TOKENS,
        temperature=1.0,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    (choice,) = reply.choices
    return Answer(
        prompt, reply.prompt_token_ids, choice.token_ids, [token.logprob for token in choice.logprobs.content]
    )


def _batch(course: Course, name: str, answers: Sequence[Answer]) -> TrainRequest:
    """Return the answers as a batch: every second one has a random positive advantage, the others a negative one."""
    chance = random.Random(name)
    trajectories = []
    for number, answer in enumerate(answers):
        turn = TurnTokens(
            encode_token_ids(list(answer.prompt_token_ids)),
            encode_token_ids(list(answer.token_ids)),
            array("f", answer.logprobs).tobytes(),
            policy_version=course.head,
        )
        reward = float(number % 2)
        advantage = (reward - 0.5) * chance.uniform(0.5, 1.0)
        trajectories.append(TrainTrajectory(f"{name}-{number}", f"{name}-{answer.prompt}", advantage, reward, (turn,)))
    config = TrainConfig(learning_rate=course.engine.learning_rate)
    return TrainRequest(name, "gpu-check", MODEL, course.head, tuple(trajectories), config)


def peak_gb(course: Course) -> float:
    """Return GiB in use: on a GPU now, by all its processes; on a CPU the most that the server has had."""
    if course.device.startswith("cuda"):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return max(map(float, subprocess.check_output(command, text=True).split())) / 1024
    identity = course.server.process.identity
    if identity is None:
        raise ServiceError("the server does not run")
    status = Path(f"/proc/{identity.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20
