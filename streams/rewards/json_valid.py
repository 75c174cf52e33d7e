"""1 where the last completion is a JSON value, else 0; `required` lists names that its object must have.

A fenced block (```json … ```) counts as its content where `fenced` is set.
"""

from rollbus.schemas.ids import parse_json
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext, last_text


def json_valid(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Parse the last completion."""
    text = last_text(trajectory).strip()
    if context.options.get("fenced") and text.startswith("```") and text.endswith("```"):
        text = text.removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        value = parse_json(text)
    except ValueError:
        return 0.0
    required = [name.strip() for name in str(context.options.get("required") or "").split(",") if name.strip()]
    return float(not required or (isinstance(value, dict) and all(name in value for name in required)))
