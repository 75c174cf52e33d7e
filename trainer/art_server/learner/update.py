"""One optimizer step from the sequences of a batch: all are accumulated, then AdamW moves the weights once.

`score_turns` computes hinted turns by the same passes, without a step.

Deterministic: the same weights, optimizer state, sequences and thread count give the same bits. A gradient that is not
finite is refused before the optimizer sees it, so a bad batch leaves no trace.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.art_server.checkpoints.checkpoint import load_optimizer
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.learner.rows import TreeBatch, batches, grow_trees
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.master_weights import MasterWeights
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.backends.distillation import HintedTurn
from rollbus.trainer.backends.durable.retention import BASE_VERSION
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import TokenSequence
from rollbus.trainer.grpo.aggregation import divisor
from rollbus.trainer.grpo.ratios import penalised_advantages
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss, step_metrics
from rollbus.trainer.train_config import TrainConfig

logger = logging.getLogger(__name__)

PADDED_TOKENS = 2048
"""Per forward pass on a CPU: rows of one pass are of like length, and activations stay near its caches. Passes of 8192
take a third longer."""
PADDED_TOKENS_GPU = 8192
"""The same on a GPU, which wants its kernels large."""
MASKED_TOKENS_SQUARED = 2**24
"""Entries of attention masks per forward pass, where rows share prefixes."""
HEAD_ROWS = 1024
"""Positions projected to the vocabulary at once: 0.6 GB of logits where it has 152,000 tokens."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-prob and entropy of sampled tokens."""

    logprobs_N: Tensor
    entropy_N: Tensor


class Learner:
    """The weights in training, their optimizer, and which version they are."""

    def __init__(self, config: ModelConfig, *, loader: ModelLoader | None = None) -> None:
        self.config = config
        self.loader = loader or ModelLoader(config)
        self.model: nn.Module = self.loader.fresh()
        self.masters = MasterWeights(self.model)
        self.version: int | None = None
        """None while the weights are not a version: before the first load, and between a step and its checkpoint."""
        self._device = self.loader.device
        self.optimizer = torch.optim.AdamW(self.masters.named.values(), foreach=self._device.type != "cpu")

    def start_from(self, version: int, checkpoint: Path) -> None:
        """Hold the weights and optimizer state of `version`, reading them unless they are held already."""
        if self.version == version:
            return
        self.version = None
        self.masters.load(self.loader.trained_weights(checkpoint))
        self.optimizer.state.clear()
        if not load_optimizer(checkpoint, self.masters.named, self.optimizer) and version != BASE_VERSION:
            logger.warning("checkpoint %s has no optimizer's state: AdamW's moments begin at zero", checkpoint)
        self.version = version

    def step(
        self, sequences: Sequence[TokenSequence], config: TrainConfig, *, reference: Path | None = None
    ) -> dict[str, float]:
        """Apply one batch and return its metrics. RejectedError, and no change, if its gradient is not finite."""
        prepared = micro_batches(sequences, device=self._device)
        tokens = sum(len(batch.targets_N) for batch in prepared)
        if tokens == 0:
            raise RejectedError("the batch holds no sampled token to train on")
        whole = divisor(
            config.aggregation,
            tokens=tokens,
            sequences=sum(len(torch.unique(batch.sequence_N)) for batch in prepared),
            constant_tokens=config.aggregation_tokens,
        )
        references = self._reference_logprobs(prepared, config, reference)
        advantages = self._advantages(prepared, config, references)
        self.model.train()
        self._forget_gradients()  # of an attempt that failed
        shares = []
        for index, batch in enumerate(prepared):
            scores = score(self.model, batch, device=self._device, entropy_gradient=bool(config.entropy_bonus))
            share = policy_loss(
                self._tokens(batch, scores, advantages[index], references[index] if references else None),
                config,
                global_tokens=whole,
            )
            share.loss.backward()  # type: ignore[no-untyped-call]
            self.masters.collect_gradients()
            shares.append(share)
        norm = float(nn.utils.clip_grad_norm_(self.masters.named.values(), config.max_grad_norm))
        report = step_metrics(shares)
        if not math.isfinite(norm):
            self._forget_gradients()
            raise RejectedError(
                f"the gradient of the batch is not finite (norm {norm}, largest ratio {report['ratio_max']:.3g}); "
                "the weights are unchanged. Look at its advantages and log-probs"
            )
        self._apply(config)
        return {**report, "grad_norm": norm, "learning_rate": config.learning_rate}

    def _apply(self, config: TrainConfig) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate
            group["betas"] = (config.adam_beta1, config.adam_beta2)
            group["weight_decay"] = config.weight_decay
        self.version = None
        self.optimizer.step()
        self._forget_gradients()
        self.masters.write_back()

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def _tokens(
        self, batch: TreeBatch, scores: TokenScores, advantages_N: Tensor, reference_N: Tensor | None
    ) -> TokenBatch:
        behaviour_N = batch.behaviour_N.to(self._device)
        return TokenBatch(
            current_N=scores.logprobs_N,
            behaviour_N=behaviour_N,
            advantages_N=advantages_N,
            judged_N=batch.advantages_N.to(self._device),
            weights_N=batch.weights_N.to(self._device),
            sequence_N=batch.sequence_N.to(self._device),
            mask_N=torch.ones_like(behaviour_N, dtype=torch.bool),
            reference_N=reference_N,
            entropy_N=scores.entropy_N,
        )

    def _reference_logprobs(
        self, prepared: Sequence[TreeBatch], config: TrainConfig, reference: Path | None
    ) -> list[Tensor] | None:
        if not config.kl_coefficient:
            return None
        if reference is None:
            raise RejectedError(
                f"kl_coefficient {config.kl_coefficient:g} needs the weights of version {config.kl_reference_version}"
            )
        frozen = self.loader.load(reference)
        with torch.no_grad():
            return [score(frozen, batch, device=self._device).logprobs_N for batch in prepared]

    def _advantages(
        self, prepared: Sequence[TreeBatch], config: TrainConfig, references: list[Tensor] | None
    ) -> list[Tensor]:
        """As given, or with the centred k1 penalty, whose mean is over the whole step."""
        advantage_parts = [batch.advantages_N.to(self._device) for batch in prepared]
        if references is None or config.kl_estimator != "k1":
            return advantage_parts
        with torch.no_grad():
            current = [score(self.model, batch, device=self._device).logprobs_N for batch in prepared]
        advantages_N = torch.cat(advantage_parts)
        penalised_N = penalised_advantages(
            advantages_N,
            torch.cat(current),
            torch.cat(references),
            torch.ones_like(advantages_N, dtype=torch.bool),
            coefficient=config.kl_coefficient,
        )
        return list(torch.split(penalised_N, [len(batch_advantages) for batch_advantages in advantage_parts]))


def score_turns(
    model: nn.Module, hinted_turns: Sequence[HintedTurn], *, device: torch.device | None = None
) -> list[list[float]]:
    """Return the log-probs of each turn's tokens behind its hint, in the order of the turns.

    What prompts share is computed once.
    """
    logprobs_by_row: dict[int, list[float]] = {}
    with torch.no_grad():
        for batch in micro_batches(list(map(_make_sequence, hinted_turns)), device=device):
            scores = score(model, batch, device=device)
            for row, value in zip(batch.sequence_N.tolist(), scores.logprobs_N.tolist(), strict=True):
                logprobs_by_row.setdefault(row, []).append(value)
    return [logprobs_by_row[row] for row in range(len(hinted_turns))]


def _make_sequence(hinted: HintedTurn) -> TokenSequence:
    """Return a turn behind its hint; it is scored, so nothing weighs."""
    turn = TurnTokens(
        encode_token_ids(hinted.prompt),
        encode_token_ids(hinted.completion),
        encode_logprobs([0.0] * len(hinted.completion)),
        policy_version=0,
        temperature=hinted.temperature,
    )
    return TokenSequence(TrainTrajectory("", "", 0.0, 0.0, (turn,)), (turn,))


def micro_batches(sequences: Sequence[TokenSequence], *, device: torch.device | None = None) -> list[TreeBatch]:
    """Return the passes that compute all sequences, each with what fits into one."""
    trees = grow_trees(sequences)
    masked = [len(tree) for tree in trees if tree.branches]
    limit = PADDED_TOKENS if device is None or device.type == "cpu" else PADDED_TOKENS_GPU
    return batches(trees, padded_tokens=min(limit, MASKED_TOKENS_SQUARED // max(masked)) if masked else limit)


def score(
    model: nn.Module, batch: TreeBatch, *, device: torch.device | None = None, entropy_gradient: bool = False
) -> TokenScores:
    """Log-prob and entropy of each sampled token, at the temperature it was sampled at.

    Only their positions are projected to the vocabulary, few at a time. Their logits are not kept for the backward pass
    but computed again: they would take more memory than everything else. An entropy without gradient keeps nothing.
    """
    mask = batch.mask()
    hidden_B_T_D = trunk(
        model,
        batch.token_ids_B_T.to(device),
        positions_B_T=batch.positions_B_T.to(device),
        mask_B_T_S=None if mask is None else mask.to(device),
    )
    # Answers to one prompt share its last position, and the gradients that meet there are added one by one: in bfloat16
    # the sum would stop growing.
    hidden_N_D = hidden_B_T_D.float()[batch.rows_N.to(device), batch.columns_N.to(device)]
    per_token = (hidden_N_D, batch.targets_N.to(device), batch.temperatures_N.to(device))
    tempered = bool((batch.temperatures_N != 1).any())

    def score_chunk(hidden_C_D: Tensor, targets_C: Tensor, temperatures_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_C_V = head(model, hidden_C_D)
        if tempered:
            logits_C_V = logits_C_V / temperatures_C[:, None]
        logprobs_C_V = torch.log_softmax(logits_C_V, dim=-1)
        logprobs_C = logprobs_C_V.gather(1, targets_C[:, None])[:, 0]
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            return logprobs_C, -(logprobs_C_V.exp() * logprobs_C_V).sum(dim=-1)

    scored = [
        checkpoint(score_chunk, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in zip(*(torch.split(column, HEAD_ROWS) for column in per_token), strict=True)
    ]
    logprobs, entropies = zip(*scored, strict=True)
    return TokenScores(torch.cat(logprobs), torch.cat(entropies))
