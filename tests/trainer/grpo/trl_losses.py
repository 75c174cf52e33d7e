"""TRL's own loss on small tensors: values and gradients by loss type, for our loss to be held to.

Runs in the environment of TRL. `GRPOTrainer._compute_loss` is called as it is; what it asks of its trainer are plain
numbers, and the log-probs are leaves instead of a model's, so nothing is loaded or generated.

    .venv-bench-model/bin/python tests/trainer/grpo/trl_losses.py --write tests/trainer/grpo/trl_losses.json
    .venv-bench-model/bin/python tests/trainer/grpo/trl_losses.py --check tests/trainer/grpo/trl_losses.json
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.grpo_trainer import nanstd

SEED = 11
ROWS, PROMPT_TOKENS, TOKENS = 5, 2, 7
MAX_COMPLETION_LENGTH = 12
PRECISION = 1e-12

CASES: dict[str, dict[str, Any]] = {
    "dapo": {"loss_type": "dapo"},
    "dapo, clip higher": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dapo with KL": {"loss_type": "dapo", "beta": 0.3},
    "dapo, stale negatives masked": {"loss_type": "dapo", "off_policy_mask_threshold": 0.5},
    "dapo, entropy bonus": {"loss_type": "dapo", "entropy_coef": 0.05},
    "bnpo": {"loss_type": "bnpo"},
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "cispo, narrow": {"loss_type": "cispo", "epsilon_high": 1.5},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "gspo by tokens": {"loss_type": "dapo", "importance_sampling_level": "sequence", "epsilon_high": 0.4},
}
"""TRL's options, by a name for the case."""


def inputs() -> dict[str, Tensor]:
    """Rows of unequal length, holes where a tool spoke, ratios on both sides of every bound."""
    generator = torch.Generator().manual_seed(SEED)

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(ROWS, TOKENS, generator=generator, dtype=torch.float64) * (high - low) + low

    lengths = torch.tensor([7, 3, 5, 1, 6])
    sampled = uniform(0, 1) > 0.2
    sampled[:, 0] = True
    current = uniform(-4, -1)
    shift = torch.tensor([-0.7, 0.0, -0.4, 0.0, 0.8], dtype=torch.float64)[
        :, None
    ]  # stale, and still with tokens inside the clip
    return {
        "current": current,
        "behaviour": (current + uniform(-2, 2) + shift).clamp(max=-0.01),
        "reference": uniform(-4, -0.1),
        "entropy": uniform(0, 2),
        "advantages": torch.tensor([1.0, -0.5, -1.5, 0.75, -0.25], dtype=torch.float64),
        "completion_mask": (torch.arange(TOKENS) < lengths[:, None]).long(),
        "sampled_mask": sampled.long(),
    }


def losses() -> dict[str, dict[str, Any]]:
    """Value and gradient with respect to the current log-probs, by case."""
    return {name: _loss(options) for name, options in CASES.items()}


def _loss(options: dict[str, Any]) -> dict[str, Any]:
    given = inputs()
    leaf = given["current"].clone().requires_grad_()
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    prompt = torch.zeros(ROWS, PROMPT_TOKENS, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(
        _trainer(leaf, given["entropy"], options),
        None,
        {
            "prompt_ids": prompt,
            "prompt_mask": torch.ones_like(prompt),
            "completion_ids": ids,
            "completion_mask": given["completion_mask"],
            "tool_mask": given["sampled_mask"],
            "advantages": given["advantages"],
            "old_per_token_logps": given["behaviour"],
            "ref_per_token_logps": given["reference"],
            "num_items_in_batch": (given["completion_mask"] * given["sampled_mask"]).sum(),
        },
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"options": options, "loss": float(loss.detach()), "gradient": gradient.tolist()}


def _trainer(leaf: Tensor, entropy: Tensor, options: dict[str, Any]) -> SimpleNamespace:
    """What the method asks of its trainer, with TRL's defaults."""
    one_process = SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda values: values,
        gather_for_metrics=lambda values: values,
        reduce=lambda values, reduction: values,
    )
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *arguments, **named: (leaf, entropy, None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=options.get("off_policy_mask_threshold"),
        importance_sampling_level=options.get("importance_sampling_level", "token"),
        beta=options.get("beta", 0.0),
        loss_type=options["loss_type"],
        epsilon_low=0.2,
        epsilon_high=options.get("epsilon_high", 0.2),
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        max_completion_length=MAX_COMPLETION_LENGTH,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled="entropy_coef" in options,
        use_adaptive_entropy=False,
        entropy_coef=options.get("entropy_coef", 0.0),
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        accelerator=one_process,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )


def batch_advantages() -> dict[str, Any]:
    """Advantages with `scale_rewards: batch`: TRL's line, which stands in a method that generates, on its `nanstd`."""
    rewards = torch.tensor([1.0, 0.0, 0.25, 0.75, 0.7, 0.1], dtype=torch.float64)
    mean = rewards.view(-1, 3).nanmean(dim=1).repeat_interleave(3)
    return {"rewards": rewards.tolist(), "advantages": ((rewards - mean) / (nanstd(rewards) + 1e-4)).tolist()}


def document() -> dict[str, Any]:
    return {
        "trl": trl.__version__,
        "torch": torch.__version__.partition("+")[0],
        "max_completion_length": MAX_COMPLETION_LENGTH,
        "inputs": {name: values.tolist() for name, values in inputs().items()},
        "cases": losses(),
        "batch_std": batch_advantages(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    computed = document()
    if options.write:
        options.write.write_text(_lines(computed), encoding="utf-8")
    if options.check:
        stored = json.loads(options.check.read_text(encoding="utf-8"))
        wrong = [name for name, case in computed["cases"].items() if not _same(case, stored["cases"].get(name))]
        wrong += [name for name in stored["cases"] if name not in computed["cases"]]
        wrong += [] if computed["batch_std"] == stored["batch_std"] else ["batch_std"]
        if wrong:
            sys.exit(f"TRL {trl.__version__} gives other losses than {options.check} (TRL {stored['trl']}): {wrong}")
        print(f"TRL {trl.__version__}: {len(computed['cases'])} losses and gradients as in {options.check}")


def _lines(values_by_part: dict[str, Any]) -> str:
    """JSON with a line for each input and case."""
    parts = []
    for name, value in values_by_part.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(case_value)}" for key, case_value in value.items())
            parts.append(f" {json.dumps(name)}: {{\n{rows}\n }}")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _same(case: dict[str, Any], stored_case: dict[str, Any] | None) -> bool:
    if stored_case is None or case["options"] != stored_case["options"]:
        return False
    left, right = (torch.tensor(values["gradient"], dtype=torch.float64) for values in (case, stored_case))
    return abs(case["loss"] - stored_case["loss"]) < PRECISION and torch.allclose(left, right, rtol=0, atol=PRECISION)


if __name__ == "__main__":
    main()
