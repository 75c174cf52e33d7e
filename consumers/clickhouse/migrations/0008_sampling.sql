-- How each turn was sampled, whole: what a request asked for, as the event and as the trajectory tell it.

ALTER TABLE turns ADD COLUMN IF NOT EXISTS top_k Nullable(Int64) AFTER top_p;
ALTER TABLE turns ADD COLUMN IF NOT EXISTS min_p Nullable(Float64) AFTER top_k;
ALTER TABLE turns ADD COLUMN IF NOT EXISTS repetition_penalty Nullable(Float64) AFTER presence_penalty;
ALTER TABLE trajectory_turns ADD COLUMN IF NOT EXISTS top_p Nullable(Float64) AFTER temperature;
ALTER TABLE trajectory_turns ADD COLUMN IF NOT EXISTS top_k Nullable(Int64) AFTER top_p;
ALTER TABLE trajectory_turns ADD COLUMN IF NOT EXISTS min_p Nullable(Float64) AFTER top_k;
ALTER TABLE trajectory_turns ADD COLUMN IF NOT EXISTS frequency_penalty Nullable(Float64) AFTER min_p;
ALTER TABLE trajectory_turns ADD COLUMN IF NOT EXISTS presence_penalty Nullable(Float64) AFTER frequency_penalty;
ALTER TABLE trajectory_turns ADD COLUMN IF NOT EXISTS repetition_penalty Nullable(Float64) AFTER presence_penalty;
