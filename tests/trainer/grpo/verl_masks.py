"""verl's own masks, weights and advantages on small tensors, for ours to be held to.

Runs in an environment with torch, numpy, omegaconf and `verl==0.9.1` installed without its dependencies: its functions
are called as they are, and what they import for distributed runs only is replaced by empty modules.

    python tests/trainer/grpo/verl_masks.py --write tests/trainer/grpo/verl_masks.json
    python tests/trainer/grpo/verl_masks.py --check tests/trainer/grpo/verl_masks.json
"""

import argparse
import importlib.util
import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

SEED = 5
ROWS, TOKENS = 6, 8
PRECISION = 1e-12
ABSENT = (
    *("ray", "tensordict", "codetiming"),
    *("verl.protocol", "verl.workers", "verl.utils.device", "verl.utils.ray_utils"),
)
WEIGHTS = {
    "token, truncated": ("token", "2.0"),
    "token, icepop": ("token", "0.5_5.0"),
    "sequence, truncated": ("sequence", "2.0"),
    "sequence, both sides": ("sequence", "0.3_3.0"),
}
"""Name of a case → verl's `rollout_is` and `rollout_is_threshold`."""
MASKS = {
    "geometric mean": ("seq_mean_k1", "0.75_1.33"),
    "product": ("seq_sum_k1", "0.4_2.5"),
    "k3": ("seq_mean_k3", "0.2"),
}
"""Name of a case → verl's `rollout_rs` and `rollout_rs_threshold`."""


class _Empty(MetaPathFinder, Loader):
    """Finds an empty module wherever an absent one is asked for; any class of it is an empty class."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if any(name == absent or name.startswith(f"{absent}.") for absent in ABSENT):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _EmptyModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""


class _EmptyModule(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _import_verl() -> tuple[Any, Any]:
    verl_spec = importlib.util.find_spec("verl")
    assert verl_spec is not None, "verl is not installed here"
    sys.meta_path.insert(0, _Empty())
    package = ModuleType("verl")  # its own __init__ imports what runs a cluster
    package.__path__ = list(verl_spec.submodule_search_locations or ())
    sys.modules["verl"] = package
    from verl.trainer.ppo import core_algos, rollout_corr_helper

    return rollout_corr_helper, core_algos


def compute() -> dict[str, Any]:
    """Return inputs and what verl makes of them, by case."""
    import numpy
    import torch

    helper, algorithms = _import_verl()
    generator = torch.Generator().manual_seed(SEED)

    def uniform(rows: int, tokens: int, low: float, high: float) -> Any:
        return torch.rand(rows, tokens, generator=generator, dtype=torch.float64) * (high - low) + low

    lengths = torch.tensor([8, 3, 5, 1, 6, 7])
    mask = (torch.arange(TOKENS) < lengths[:, None]).double()
    current = uniform(ROWS, TOKENS, -4, -1)
    drift = torch.tensor([0.0, 0.9, -0.9, 0.1, 0.0, 0.3], dtype=torch.float64)[:, None]
    spread = torch.tensor([0.2, 0.5, 1.0, 0.1, 2.0, 0.05], dtype=torch.float64)[:, None]
    behaviour = (current + drift + spread * uniform(ROWS, TOKENS, -1, 1)).clamp(max=-0.01)
    log_ratio = current - behaviour
    rewards = torch.tensor([1.0, 0.0, 0.25, 0.75, 0.7, 0.1], dtype=torch.float64)
    groups = numpy.array(["a", "a", "a", "b", "b", "c"])
    weights = {
        name: helper.compute_rollout_correction_weights(log_ratio, mask, level, rollout_is_threshold=bounds)[0].tolist()
        for name, (level, bounds) in WEIGHTS.items()
    }
    masks = {
        name: helper.compute_rollout_rejection_mask(log_ratio, mask, option, bounds)[0].tolist()
        for name, (option, bounds) in MASKS.items()
    }
    outcome = torch.zeros(ROWS, TOKENS, dtype=torch.float64)
    outcome[:, 0] = rewards
    by_group, _ = algorithms.compute_grpo_outcome_advantage(outcome, torch.ones_like(mask), groups)
    return {
        "verl": version("verl"),
        "inputs": {
            "current": current.tolist(),
            "behaviour": behaviour.tolist(),
            "mask": mask.tolist(),
            "rewards": rewards.tolist(),
            "groups": groups.tolist(),
        },
        "weights": weights,
        "masks": masks,
        "advantages": by_group[:, 0].tolist(),
    }


def main() -> None:
    """Write the file, or compare it with what verl computes now."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    arguments = parser.parse_args()
    masks = json.loads(json.dumps(compute()))
    if arguments.write:
        arguments.write.write_text(json.dumps(masks, indent=1) + "\n", encoding="utf-8")
    if arguments.check and not _equal(masks, json.loads(arguments.check.read_text(encoding="utf-8"))):
        raise SystemExit(f"verl computes other numbers than {arguments.check} holds")


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(abs(left - right) <= PRECISION if isinstance(left, float) else left == right)


if __name__ == "__main__":
    main()
