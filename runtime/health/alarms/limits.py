"""When something is called wrong: the settings of `health: alarms:`."""

from pydantic import BaseModel, ConfigDict, Field


class AlarmLimits(BaseModel):
    """When the picture calls something wrong; None switches an alarm off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    waiting_s: float | None = Field(default=240.0, gt=0)
    """Work that is there and has not moved. A worker that is stuck for five minutes ends itself, so the default is
    shorter: it is reported while it can still be looked at. A training step is named when it is open for longer than
    this, and than three times the longest of the newest steps."""
    lag_records: int | None = Field(default=1_000, ge=1)
    """A consumer group that is so far behind, and whose lag has grown for five minutes."""
    no_step_s: float | None = Field(default=3_600.0, gt=0)
    """Since a run's newest closed step, and since the first episode after it."""
    reward_fall: float | None = Field(default=0.2, gt=0)
    """Mean reward of the newest five steps below that of up to twenty before them."""
    no_signal_share: float | None = Field(default=0.9, gt=0, le=1)
    """Share of the groups without a signal in a run's newest curriculum window."""
    hold_s: float = Field(default=300.0, ge=0)
    """How long a problem must be away until `rollbus alarms run` posts that it ended: what hovers around its limit is
    one alarm."""
