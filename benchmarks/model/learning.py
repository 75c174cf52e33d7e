"""What makes SmolLM2 learn the demo's jobs: the sampler and the learner alone, one setting changed at a time.

    python -m benchmarks.model.learning [--seed 0] [--every 800] [--regression] NAME [NAME ...]   of TRIALS

Without Kafka, and in turn: a step samples attempts at the next tickets until enough groups have signal, then makes its
updates. Tickets, agents, verdicts, advantages and loss are the demo's; `default` is its job with eight attempts each.
The trials `single` make one attempt at each ticket, held against what the grouping stage expects of it; in `words` the
reward is what `next_turn` reads in what the example's customers say, without any verdict; in `judge` it is what
`next_turn_judge` is told of these words by an endpoint, a script that is right or that errs in one of twenty; in
`hints` what corrects an answer is a hint, too, as with the setting `distill`. Prints the share of the demo's unseen
tickets that the most probable answer names rightly, with its 95 % interval, as traffic goes on. Nothing is timed, so
trials may run at the same time; with AVX2 alone one takes about 40 minutes of a core. With --regression the policy is
a regression on words, which takes seconds: what the signal and the steps alone allow.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from benchmarks.model.regression import Attempt, RegressionPolicy
from rollbus.demo.routing.customers import verdict_of
from rollbus.demo.routing.evaluation import unseen_tickets
from rollbus.demo.routing.job import GROUP_SIZE, GROUPS_PER_STEP, LEARNING_RATE, RANK, LookUp, RoutingJob
from rollbus.demo.routing.prompt import LookUp as LookUpOrder
from rollbus.demo.routing.tasks import ORDERS, look_up_in
from rollbus.demo.routing.tickets import Ticket
from rollbus.schemas.records.config import GroupingConfig, RunConfig
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import Reward
from rollbus.streams.rewards.contract import RewardContext, TurnValues
from rollbus.streams.rewards.endpoint import Endpoint
from rollbus.streams.rewards.next_turn.judge import next_turn_judge
from rollbus.streams.rewards.next_turn.rules import next_turn
from rollbus.streams.stages.alias import NEXT_TURN
from rollbus.streams.stages.curriculum.batching import centre_single_attempts
from rollbus.streams.stages.grouping.advantages import advantages
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.sketch import sketch_opening
from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache
from rollbus.trainer.art_server.checkpoints.base_version import write_base_version
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.endpoint.hints import HintPlace
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer, render_chat
from rollbus.trainer.art_server.endpoint.tool_calls import read_tool_calls
from rollbus.trainer.art_server.learner.update import Learner, score_turns
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.precision import choose_precision
from rollbus.trainer.art_server.sampler.requests import Generation, SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.distillation import distill_hints, place_hints
from rollbus.trainer.backends.model_settings import LogprobsMode, LoraConfig
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import make_sequences, weigh_trajectories
from rollbus.trainer.train_config import Distillation, TrainConfig
from rollbus.trainer.validation.evaluation import wilson_interval
from tests.builders import make_score, make_trajectory
from tests.services.judges import DeskJudge, ErringDeskJudge
from tests.stepper import Stepper
from tests.web import serve

SAMPLED_TOGETHER = 32
"""Single attempts between two looks at whether a step is full."""
Complete = Callable[[list[dict[str, Any]], Mapping[str, Any]], tuple[list[int], Future[Generation]]]
"""A chat and the parameters of its request → the prompt's tokens and the answer."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "routing"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial may change."""

    job: type[RoutingJob] = RoutingJob
    rate: float = LEARNING_RATE
    group_size: int = GROUP_SIZE
    groups: int = GROUPS_PER_STEP
    updates: int = 1
    """How often the learner steps on each batch."""
    kl: float = RoutingJob.kl
    """Coefficient of the KL to the base model (k3) in the loss."""
    reward_from: Literal["verdicts", "rules"] | type[DeskJudge] = "verdicts"
    """What an answer was worth: late verdicts, or what the rules or a judge make of a customer's next words."""
    advantage: Literal["mean", "mean_std"] = "mean_std"
    """Whether advantages are divided by the deviation of their group, or of the batch's single attempts."""
    distill: Distillation | None = None
    """How what corrects an answer becomes advantages of its tokens, of rewards in words alone."""


TRIALS = {
    "default": Trial(),
    "no-kl": Trial(kl=0.0),
    "rate-4e-4": Trial(rate=4e-4),
    "two-updates": Trial(updates=2, kl=0.0),
    "single": Trial(group_size=1, groups=64),
    "single-32": Trial(group_size=1, groups=32),
    "single-16": Trial(group_size=1, groups=16),
    "single-8": Trial(group_size=1, groups=8),
    "single-16-two-updates": Trial(group_size=1, groups=16, updates=2),
    "single-words": Trial(group_size=1, groups=64, reward_from="rules"),
    "single-words-32": Trial(group_size=1, groups=32, reward_from="rules"),
    "single-words-16": Trial(group_size=1, groups=16, reward_from="rules"),
    "single-judge-16": Trial(group_size=1, groups=16, reward_from=DeskJudge),
    "single-erring-judge-16": Trial(group_size=1, groups=16, reward_from=ErringDeskJudge),
    "single-16-undivided": Trial(group_size=1, groups=16, advantage="mean"),
    "single-words-16-undivided": Trial(group_size=1, groups=16, reward_from="rules", advantage="mean"),
    "single-erring-judge-16-undivided": Trial(group_size=1, groups=16, reward_from=ErringDeskJudge, advantage="mean"),
    "orders-single-16": Trial(LookUp, kl=LookUp.kl, group_size=1, groups=16),
    "orders-single-64": Trial(LookUp, kl=LookUp.kl, group_size=1, groups=64),
    "single-hints-16": Trial(group_size=1, groups=16, reward_from="rules", distill=Distillation()),
}


class Policy:
    """SmolLM2 with adapters, sampled and trained in turn."""

    def __init__(self, trial: Trial, folder: Path, device: str) -> None:
        base = fetch_model("smollm2", models_cache(), report=print)
        self._task, self._max_tokens = trial.job.task, trial.job.max_tokens
        config = read_config(base, max_tokens=self._max_tokens)
        self._tokenizer = load_tokenizer(base)
        self._place_hint = HintPlace(self._tokenizer)
        lora = LoraConfig(rank=RANK, alpha=2 * RANK)
        precision = choose_precision("auto", device)
        self._loader = ModelLoader(config, precision=precision, lora=lora, base=base, device=device)
        self._base = folder / "0"
        write_base_version(self._base, self._loader, base)
        self._learner = Learner(config, loader=self._loader)
        self._learner.start_from(0, self._base)
        self._sampler = Sampler(
            config,
            self._tokenizer,
            max_rows=128,
            keep_versions=1,
            logprobs_mode=self._task.logprobs_mode,
            dtype=self._loader.dtype,
            device=device,
        )
        self.version = 0
        self._serve()

    def close(self) -> None:
        self._sampler.close()

    def attempt(
        self, tickets: Sequence[Ticket], look_up: LookUpOrder, temperature: float, chance: random.Random
    ) -> list[Attempt]:
        """Let the demo's agent answer each ticket."""
        seeds = [chance.getrandbits(32) for _ in tickets]

        async def attempt(ticket: Ticket, seed: int) -> Attempt:
            client = SamplerClient(self._complete, self._task.logprobs_mode, random.Random(seed))
            chat = self._task.messages(ticket.text)
            team = await self._task.ask(client, "", chat, temperature, look_up)  # type: ignore[arg-type]
            return Attempt(tuple(client.turns), team)

        async def attempt_all() -> list[Attempt]:
            return await asyncio.gather(*map(attempt, tickets, seeds))

        return asyncio.run(attempt_all())

    def train(self, batch: Sequence[Attempt], trial: Trial) -> None:
        """Update from a batch, and answer with the new weights from then on."""
        config = TrainConfig(learning_rate=trial.rate, kl_coefficient=trial.kl, kl_estimator="k3")
        trajectories = tuple(
            TrainTrajectory(str(number), str(number // trial.group_size), attempt.advantage, 0.0, attempt.turns)
            for number, attempt in enumerate(batch)
        )
        if trial.distill is not None:
            turns = place_hints(trajectories, self._place_hint, max_tokens=self._max_tokens)
            logprobs = score_turns(self._learner.model, turns, device=self._loader.device)
            trajectories, _ = distill_hints(trajectories, turns, logprobs, trial.distill)
        sequences = make_sequences(trajectories, weigh_trajectories(trajectories, config.aggregation))
        for _ in range(trial.updates):
            self._learner.step(sequences, config, reference=self._base if trial.kl else None)
        self.version += 1
        self._serve()

    def _complete(
        self, chat: list[dict[str, Any]], parameters: Mapping[str, Any]
    ) -> tuple[list[int], Future[Generation]]:
        """Return the tokens of a chat, and the answer to it."""
        prompt = render_chat(self._tokenizer, chat, parameters.get("tools"))
        sampling = SamplingParameters(
            parameters["max_completion_tokens"], parameters["temperature"], seed=parameters["seed"]
        )
        return prompt, self._sampler.submit(prompt, sampling, self.version)

    def _serve(self) -> None:
        model = self._loader.fresh()
        model.load_state_dict(dict(self._learner.masters.named), strict=False)
        self._sampler.load(self.version, model)
        self._sampler.pin([self.version])


class SamplerClient:
    """Answers the demo's agent as an OpenAI client does, without a server, and keeps the tokens of each turn."""

    def __init__(self, complete: Complete, mode: LogprobsMode, chance: random.Random) -> None:
        self.turns: list[TurnTokens] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        self._complete, self._mode, self._chance = complete, mode, chance

    async def _create(self, *, messages: list[dict[str, Any]], **parameters: Any) -> Any:
        prompt, future = self._complete(messages, parameters | {"seed": self._chance.getrandbits(32)})
        answer = await asyncio.wrap_future(future)
        self.turns.append(
            TurnTokens(
                encode_token_ids(prompt),
                encode_token_ids(answer.token_ids),
                encode_logprobs(answer.logprobs),
                policy_version=answer.version,
                temperature=parameters["temperature"],
                logprob_mode=self._mode,
            )
        )
        content, calls = read_tool_calls(answer.text)
        tool_calls = [
            SimpleNamespace(id=f"call_{number}", type="function", function=call) for number, call in enumerate(calls)
        ]
        return SimpleNamespace(
            choices=[SimpleNamespace(message=SimpleNamespace(content=content, tool_calls=tool_calls))]
        )


class Groups:
    """Several attempts at each ticket, compared with one another."""

    def __init__(self, policy: Policy | RegressionPolicy, trial: Trial, seed: int, chance: random.Random) -> None:
        self._policy, self._trial, self._seed, self._chance = policy, trial, seed, chance
        self._task = trial.job.task
        self._look_up = look_up_in(self._task.traffic, seed)

    def next_batch(self, numbers: Iterator[int]) -> list[Attempt]:
        """Return the attempts of as many groups with signal as the trial asks for, or of fewer if traffic ends."""
        batch: list[Attempt] = []
        for number in numbers:
            ticket = self._task.traffic.ticket(self._seed, number)
            if not (verdict := verdict_of(ticket, self._seed)):
                continue
            tickets = [ticket] * self._trial.group_size
            attempts = self._policy.attempt(tickets, self._look_up, self._task.temperature, self._chance)
            rewards = [float(attempt.team == verdict.teams[-1]) for attempt in attempts]
            if len(set(rewards)) > 1:
                batch += [
                    replace(attempt, advantage=advantage)
                    for attempt, advantage in zip(attempts, advantages(rewards, self._trial.advantage), strict=True)
                ]
            if len(batch) == self._trial.groups * self._trial.group_size:
                break
        return batch


class Singles:
    """One attempt at each ticket: its reward, and its advantage by the grouping stage itself."""

    def __init__(
        self,
        policy: Policy | RegressionPolicy,
        trial: Trial,
        seed: int,
        chance: random.Random,
        judge: Endpoint | None = None,
    ) -> None:
        self._policy, self._trial, self._seed, self._chance = policy, trial, seed, chance
        self._judge = judge
        self._task = trial.job.task
        self._look_up = look_up_in(self._task.traffic, seed)
        grouping = GroupingConfig(strategy="single", reward_wait_ms=0, reward_grace_ms=0, advantage=trial.advantage)
        self._grouping = Stepper(GroupingStage(RunConfig(grouping=grouping)))
        self._grouping.tick()
        self._attempts: dict[str, Attempt] = {}
        self._waiting: list[Group] = []

    def next_batch(self, numbers: Iterator[int]) -> list[Attempt]:
        """Return the attempts of the next step, or of fewer tickets if traffic ends."""
        while len(self._waiting) < self._trial.groups and (next_numbers := list(islice(numbers, SAMPLED_TOGETHER))):
            self._attempt(next_numbers)
        groups, self._waiting = self._waiting[: self._trial.groups], self._waiting[self._trial.groups :]
        return [
            replace(self._attempts.pop(group.members[0].trajectory_id), advantage=group.members[0].advantage)
            for group in centre_single_attempts(groups, self._trial.advantage)
        ]

    def _attempt(self, numbers: Sequence[int]) -> None:
        tickets = [self._task.traffic.ticket(self._seed, number) for number in numbers]
        attempts = self._policy.attempt(tickets, self._look_up, self._task.temperature, self._chance)
        for ticket, attempt in zip(tickets, attempts, strict=True):
            reward, hint = self._reward(ticket, attempt.team)
            if reward is None:
                continue
            *earlier, last = attempt.turns
            self._attempts[ticket.order] = replace(attempt, turns=(*earlier, replace(last, hint=hint)))
            score = make_score(
                ticket.order,
                reward,
                version=self._policy.version,
                example_id=None,
                prompt_hash=ticket.order,
                opening_sketch=sketch_opening((Message(role="user", content=ticket.text),)),
            )
            self._take(self._grouping.feed(score))
        self._take(self._grouping.tick(1))

    def _take(self, records: Sequence[object]) -> None:
        self._waiting += [record for record in records if isinstance(record, Group) and record.has_signal]

    def _reward(self, ticket: Ticket, team: str | None) -> tuple[float | None, str]:
        """Return the reward of an answer, None without clear words, and what may be a hint."""
        if self._trial.reward_from == "verdicts":
            verdict = verdict_of(ticket, self._seed)
            return None if verdict is None else float(team == verdict.teams[-1]), ""
        rng = random.Random(f"words:{self._seed}:{ticket.order}")
        words = customers_words(team == ticket.team, ticket.team, rng)
        if words is None:
            return None, ""
        values = self._read_words(ticket, team or "", words)
        return values.total, words if any(turn.is_hint for turn in values.turns) else ""

    def _read_words(self, ticket: Ticket, answer: str, words: str) -> TurnValues:
        """Return what the trial's component of scoring makes of a customer's next words."""
        trajectory = make_trajectory(ticket.order, text=answer, reward=None)
        (turn,) = trajectory.turns
        reply = Reward(event_id=f"said-{ticket.order}", name=NEXT_TURN, value=0.0, signal="reply", comment=words)
        question = replace(turn, added_messages=(Message(role="user", content=ticket.text),))
        trajectory = replace(trajectory, turns=(question,), rewards=(reply,))
        if self._judge is None:
            return next_turn(trajectory, RewardContext(NEXT_TURN))
        return asyncio.run(next_turn_judge(trajectory, RewardContext(NEXT_TURN, ask=self._judge)))


def customers_words(is_right: bool, team: str, rng: random.Random) -> str | None:
    """Return what the customers of examples/routing say."""
    if str(EXAMPLE) not in sys.path:
        sys.path.append(str(EXAMPLE))
    words: str | None = import_module("customers").next_words(is_right, team, rng)
    return words


def learn(name: str, seed: int, every: int, policy: Policy | RegressionPolicy) -> None:
    """Let a trial learn from the traffic of a seed, and print what it reaches."""
    trial, chance = TRIALS[name], random.Random(seed)
    task, amounts = trial.job.task, trial.job.amounts
    unseen, look_up = unseen_tickets(task, seed, amounts.evaluated), look_up_in(task.unseen, seed)

    def evaluate(tickets: int) -> None:
        attempts = policy.attempt(unseen, look_up, 0.0, chance)
        right = sum(attempt.team == ticket.team for attempt, ticket in zip(attempts, unseen, strict=True))
        low, share, high = (f"{100 * bound:.1f}" for bound in wilson_interval(right, len(unseen)))
        print(f"{name}, seed {seed}: {tickets} tickets, {policy.version} steps: {share} % [{low}, {high}]", flush=True)

    numbers = iter(range(amounts.episodes))
    with ExitStack() as stack:
        stack.callback(policy.close)
        batches: Groups | Singles
        if trial.group_size > 1:
            batches = Groups(policy, trial, seed, chance)
        elif isinstance(trial.reward_from, type):
            judge = Endpoint(f"{stack.enter_context(serve(trial.reward_from))}/v1", "desk-judge")
            batches = Singles(policy, trial, seed, chance, judge)
        else:
            batches = Singles(policy, trial, seed, chance)
        for begun in range(0, amounts.episodes, every):
            next_numbers = islice(numbers, every)
            while batch := batches.next_batch(next_numbers):
                policy.train(batch, trial)
            evaluate(min(begun + every, amounts.episodes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=TRIALS, help=", ".join(TRIALS))
    parser.add_argument("--seed", type=int, default=0, help="of the traffic, the verdicts and the sampling")
    parser.add_argument("--every", type=int, default=800, metavar="TICKETS", help="between two evaluations")
    parser.add_argument("--device", default="cpu", help="torch's name of it, such as cuda")
    parser.add_argument("--regression", action="store_true", help="a regression on words in place of SmolLM2")
    options = parser.parse_args()
    if options.regression and any(TRIALS[name].distill or TRIALS[name].job.task is ORDERS for name in options.names):
        parser.error("a regression on words takes no hint and calls no tool: leave out --regression")
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            policy = RegressionPolicy() if options.regression else Policy(TRIALS[name], Path(folder), options.device)
            learn(name, options.seed, options.every, policy)


if __name__ == "__main__":
    main()
