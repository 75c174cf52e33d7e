"""Every record type that travels on a topic, one row each."""

from rollbus.schemas import control, drops, events, groups, replays, steps, trajectories

RECORDS: tuple[type, ...] = (
    events.EpisodeStarted,
    events.TurnRecorded,
    events.ToolCalled,
    events.RewardReported,
    events.EpisodeEnded,
    events.WriterClosed,
    events.Excluded,
    events.AliasDeclared,
    control.Tick,
    control.ConfigApplied,
    control.RunCommand,
    trajectories.Trajectory,
    trajectories.RewardRevised,
    trajectories.Score,
    groups.Group,
    groups.CurriculumState,
    groups.TrainingBatch,
    groups.StepOutcome,
    steps.StepStarted,
    steps.StepCompleted,
    steps.StepSkipped,
    steps.StepFailed,
    steps.PolicyVersion,
    steps.Evaluation,
    drops.Drop,
    drops.DeadLetter,
    drops.ProducerReport,
    replays.ReplayManifest,
)
