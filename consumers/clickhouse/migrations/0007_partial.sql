-- Why a trajectory may lack turns: its episode lost events, or its writers missed calls.

ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS partial Array(LowCardinality(String));
