"""What makes SmolLM2 learn the demo's tickets: the sampler and the learner alone, one setting changed at a time.

    python -m benchmarks.model.learning [--seed 0] [--regression] NAME [NAME ...]     of TRIALS; `default` is the demo

Without Kafka, and in turn: a step samples attempts at the next tickets until enough groups have signal, then makes its
updates. Tickets, verdicts, prompts, advantages and loss are the demo's. The trials `single` make one attempt at each
ticket, held against what the grouping stage expects of it; in `words` the reward is what `next_turn` reads in what the
example's customers say, and nobody gives a verdict. Prints the share of 832 unseen tickets that the
most probable answer names rightly, with its 95 % interval, after each 800 tickets of traffic. Nothing is timed, so
trials may run beside each other; with AVX2 alone one takes about 40 minutes of a core. With --regression the policy is
a regression on words, which takes seconds: what the signal and the steps alone allow.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path

from benchmarks.model.regression import RegressionPolicy
from rollbus.demo.routing.customers import verdict_of
from rollbus.demo.routing.evaluation import unseen_tickets
from rollbus.demo.routing.job import GROUP_SIZE, GROUPS_PER_STEP, LEARNING_RATE, RANK, RoutingJob
from rollbus.demo.routing.prompt import messages
from rollbus.demo.routing.tasks import ROUTING
from rollbus.demo.routing.tickets import Ticket
from rollbus.schemas.records.config import GroupingConfig, RunConfig
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.streams.rewards.contract import RewardContext
from rollbus.streams.rewards.next_turn.exchanges import NextTurn
from rollbus.streams.rewards.next_turn.rules import speak
from rollbus.streams.stages.curriculum.batching import centred
from rollbus.streams.stages.grouping.advantages import advantages
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.sketch import sketch_opening
from rollbus.trainer.art_server.base_models.packaged import fetch_model, models_cache
from rollbus.trainer.art_server.checkpoints.base_version import write_base_version
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
from rollbus.trainer.art_server.learner.update import Learner
from rollbus.trainer.art_server.model.config import read_config
from rollbus.trainer.art_server.model.precision import choose_precision
from rollbus.trainer.art_server.sampler.requests import Generation, SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.model_settings import LoraConfig
from rollbus.trainer.backends.protocol import TrainConfig, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import TokenSequence
from rollbus.trainer.validation.evaluation import wilson_interval
from tests.builders import make_score
from tests.stepper import Stepper

TICKETS, BETWEEN = 1600, 800
"""Tickets of traffic in all, and between two evaluations."""
MAX_TOKENS = 256
SAMPLED_TOGETHER = 32
"""Single attempts between two looks at whether a step is full."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "routing"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial may change."""

    rank: int = RANK
    rate: float = LEARNING_RATE
    group_size: int = GROUP_SIZE
    groups: int = GROUPS_PER_STEP
    updates: int = 1
    """How often the learner steps on each batch."""
    kl: float = RoutingJob.kl
    """Coefficient of the KL to the base model (k3) in the loss."""
    in_words: bool = False
    """Whether the reward is what a customer says next, in place of a verdict."""


TRIALS = {
    "default": Trial(),
    "no-kl": Trial(kl=0.0),
    "kl-0.01": Trial(kl=0.01),
    "rate-4e-4": Trial(rate=4e-4),
    "rank-4": Trial(rank=4),
    "rank-64": Trial(rank=64),
    "two-updates": Trial(updates=2, kl=0.0),
    "four-attempts": Trial(group_size=4, groups=16),
    "sixteen-attempts": Trial(group_size=16, groups=4),
    "single": Trial(group_size=1, groups=64),
    "single-32": Trial(group_size=1, groups=32),
    "single-16": Trial(group_size=1, groups=16),
    "single-8": Trial(group_size=1, groups=8),
    "single-16-two-updates": Trial(group_size=1, groups=16, updates=2),
    "single-words": Trial(group_size=1, groups=64, in_words=True),
    "single-words-32": Trial(group_size=1, groups=32, in_words=True),
    "single-words-16": Trial(group_size=1, groups=16, in_words=True),
}


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts at one ticket, each of one token."""

    prompt: Sequence[int]
    answers_G: Sequence[Generation]
    advantages_G: Sequence[float]


class Policy:
    """SmolLM2 with adapters, sampled and trained in turn."""

    def __init__(self, trial: Trial, folder: Path, device: str) -> None:
        base = fetch_model("smollm2", models_cache(), report=print)
        config = read_config(base, max_tokens=MAX_TOKENS)
        self._tokenizer = load_tokenizer(base)
        lora = LoraConfig(rank=trial.rank, alpha=2 * trial.rank)
        precision = choose_precision("auto", device)
        self._loader = ModelLoader(config, precision=precision, lora=lora, base=base, device=device)
        self._base = folder / "0"
        write_base_version(self._base, self._loader, base)
        self._learner = Learner(config, loader=self._loader)
        self._learner.start_from(0, self._base)
        self._sampler = Sampler(
            config, self._tokenizer, max_rows=128, keep_versions=1, dtype=self._loader.dtype, device=device
        )
        self.version = 0
        self._serve()

    def close(self) -> None:
        self._sampler.close()

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of a ticket's chat."""
        chat = self._tokenizer.apply_chat_template(messages(text), add_generation_prompt=True, tokenize=False)
        return list(self._tokenizer.encode(chat))

    def answer(self, prompts: Sequence[Sequence[int]], temperature: float, chance: random.Random) -> list[Generation]:
        """Return one token after each prompt."""
        futures = [
            self._sampler.submit(prompt, SamplingParameters(1, temperature, seed=chance.getrandbits(32)), self.version)
            for prompt in prompts
        ]
        return [future.result() for future in futures]

    def train(self, batch: Sequence[Attempts], trial: Trial) -> None:
        """Update from a batch, and answer with the new weights from then on."""
        config = TrainConfig(learning_rate=trial.rate, kl_coefficient=trial.kl, kl_estimator="k3")
        sequences = make_sequences(batch)
        for _ in range(trial.updates):
            self._learner.step(sequences, config, reference=self._base if trial.kl else None)
        self.version += 1
        self._serve()

    def _serve(self) -> None:
        model = self._loader.fresh()
        model.load_state_dict(dict(self._learner.masters.named), strict=False)
        self._sampler.load(self.version, model)
        self._sampler.pin([self.version])


def make_sequences(batch: Sequence[Attempts]) -> list[TokenSequence]:
    """Return each attempt of a batch as a sequence."""
    sequences = []
    for attempts in batch:
        for answer, advantage in zip(attempts.answers_G, attempts.advantages_G, strict=True):
            turn = TurnTokens(
                encode_token_ids(attempts.prompt),
                encode_token_ids(answer.token_ids),
                encode_logprobs(answer.logprobs),
                policy_version=0,
            )
            sequences.append(TokenSequence(TrainTrajectory("t", "g", advantage, 0.0, (turn,)), (turn,)))
    return sequences


def next_groups(
    policy: Policy | RegressionPolicy, trial: Trial, seed: int, numbers: Iterator[int], chance: random.Random
) -> list[Attempts]:
    """Return the next batch: as many groups with signal as the trial asks for, or fewer if traffic ends."""
    batch: list[Attempts] = []
    for number in numbers:
        ticket = ROUTING.traffic.ticket(seed, number)
        if not (verdict := verdict_of(ticket, seed)):
            continue
        prompt = policy.prompt(ticket.text)
        answers = policy.answer([prompt] * trial.group_size, ROUTING.temperature, chance)
        rewards = [float(answer.text == verdict.teams[-1]) for answer in answers]
        if len(set(rewards)) > 1:
            batch.append(Attempts(prompt, answers, advantages(rewards, "mean_std")))
        if len(batch) == trial.groups:
            break
    return batch


class SingleAttempts:
    """One attempt at each ticket: its reward, and its advantage by the grouping stage itself."""

    def __init__(self, policy: Policy | RegressionPolicy, trial: Trial, seed: int, chance: random.Random) -> None:
        self._policy, self._trial, self._seed, self._chance = policy, trial, seed, chance
        grouping = GroupingConfig(strategy="single", reward_wait_ms=0, reward_grace_ms=0, advantage="mean_std")
        self._grouping = Stepper(GroupingStage(RunConfig(grouping=grouping)))
        self._grouping.tick()
        self._attempts: dict[str, Attempts] = {}
        self._waiting: list[Group] = []

    def next_batch(self, numbers: Iterator[int]) -> list[Attempts]:
        """Return the attempts of the next step, or of fewer tickets if traffic ends."""
        while len(self._waiting) < self._trial.groups and (next_numbers := list(islice(numbers, SAMPLED_TOGETHER))):
            self._attempt(next_numbers)
        groups, self._waiting = self._waiting[: self._trial.groups], self._waiting[self._trial.groups :]
        return [
            replace(self._attempts.pop(group.members[0].trajectory_id), advantages_G=[group.members[0].advantage])
            for group in centred(groups, "mean_std")
        ]

    def _attempt(self, numbers: Sequence[int]) -> None:
        tickets = [ROUTING.traffic.ticket(self._seed, number) for number in numbers]
        prompts = [self._policy.prompt(ticket.text) for ticket in tickets]
        answers = self._policy.answer(prompts, ROUTING.temperature, self._chance)
        for ticket, prompt, answer in zip(tickets, prompts, answers, strict=True):
            if (reward := self._reward(ticket, answer.text)) is None:
                continue
            self._attempts[ticket.order] = Attempts(prompt, [answer], [0.0])
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

    def _reward(self, ticket: Ticket, answer: str) -> float | None:
        """Return the reward of an answer; None if nobody says anything, or nothing clear."""
        if not self._trial.in_words:
            verdict = verdict_of(ticket, self._seed)
            return None if verdict is None else float(answer == verdict.teams[-1])
        rng = random.Random(f"words:{self._seed}:{ticket.order}")
        words = customers_words(answer == ticket.team, ticket.team, rng)
        if words is None:
            return None
        return speak(NextTurn("", "reply", ticket.text, answer, words), RewardContext("next"))[1]


def customers_words(is_right: bool, team: str, rng: random.Random) -> str | None:
    """Return what the customers of examples/routing say."""
    if str(EXAMPLE) not in sys.path:
        sys.path.append(str(EXAMPLE))
    words: str | None = import_module("customers").next_words(is_right, team, rng)
    return words


def learn(name: str, seed: int, policy: Policy | RegressionPolicy) -> None:
    """Let a trial learn from the traffic of a seed, and print what it reaches."""
    trial, chance = TRIALS[name], random.Random(seed)
    unseen = unseen_tickets(ROUTING, seed)
    prompts = [policy.prompt(ticket.text) for ticket in unseen]

    def evaluate(tickets: int) -> None:
        answers = policy.answer(prompts, 0.0, chance)
        right = sum(answer.text == ticket.team for answer, ticket in zip(answers, unseen, strict=True))
        low, share, high = (f"{100 * bound:.1f}" for bound in wilson_interval(right, len(unseen)))
        print(f"{name}, seed {seed}: {tickets} tickets, {policy.version} steps: {share} % [{low}, {high}]", flush=True)

    numbers = iter(range(TICKETS))
    singles = SingleAttempts(policy, trial, seed, chance)
    for tickets in range(BETWEEN, TICKETS + BETWEEN, BETWEEN):
        next_numbers = islice(numbers, BETWEEN)
        while batch := (
            singles.next_batch(next_numbers)
            if trial.group_size == 1
            else next_groups(policy, trial, seed, next_numbers, chance)
        ):
            policy.train(batch, trial)
        evaluate(tickets)
    policy.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=TRIALS, help=", ".join(TRIALS))
    parser.add_argument("--seed", type=int, default=0, help="of the traffic, the verdicts and the sampling")
    parser.add_argument("--device", default="cpu", help="torch's name of it, such as cuda")
    parser.add_argument("--regression", action="store_true", help="a regression on words in place of SmolLM2")
    options = parser.parse_args()
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            policy = RegressionPolicy() if options.regression else Policy(TRIALS[name], Path(folder), options.device)
            learn(name, options.seed, policy)


if __name__ == "__main__":
    main()
