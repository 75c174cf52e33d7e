"""Settings of an update that contradict each other, or say nothing, are refused at the start."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from rollbus.trainer.train_config import TrainConfig


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"aggregation": "constant"}, "needs aggregation_tokens"),
        ({"advantages": "art", "aggregation": "prompt_mean"}, "weighs every trajectory alike"),
        ({"ratio_min": 6.0}, "ratio_min 6 lies above ratio_max 5"),
        ({"learning_rate": math.inf}, "finite"),
        ({"off_policy_mask_threshold": math.nan}, "finite"),
        ({"sequence_mask": "k3"}, "go together"),
        ({"sequence_mask_bounds": (0.0, 1.0)}, "go together"),
        ({"sequence_mask": "k3", "sequence_mask_bounds": (1.0, 0.5)}, "least, greatest"),
        ({"importance_floor": 3.0}, "lies above importance_cap"),
        ({"advantages": "art", "advantage_scale": "batch_std"}, "ART scales its own"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValidationError, match=refusal):
        TrainConfig(**settings)


@pytest.mark.parametrize("aggregation", ["token_mean", "trajectory_mean"])
def test_arts_own_advantages_are_accepted_with_arts_aggregations(aggregation: Any) -> None:
    assert TrainConfig(advantages="art", aggregation=aggregation).advantages == "art"
