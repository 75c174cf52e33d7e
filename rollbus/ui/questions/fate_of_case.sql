-- name: fate_of_case
-- What became of one trajectory in a run, with the words of the drop that decided it, and how its example was attempted.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param trajectory String = '' : trajectory id
WITH
    (
        SELECT (any(task), any(example_id)) FROM trajectories
        WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
    ) AS example,
    (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    multiIf(fates.fate != '', fates.fate, is_removed, 'dropped', 'pending') AS fate,
    fates.step AS step,
    fates.stage AS stage,
    if(fates.fate = '' AND is_removed, 'run_removed', fates.reason) AS reason,
    fates.unit AS unit,
    fates.unit_id AS unit_id,
    drops.detail AS detail,
    attempts.attempts AS attempts,
    attempts.prompts AS prompts
FROM
(
    SELECT DISTINCT trajectory_key FROM trajectories
    WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
) AS assembled
LEFT JOIN
(
    SELECT *
    FROM decided_fates(namespace = {namespace:String}, run = {run:String})
    WHERE trajectory_key = cityHash64({trajectory:String})
) AS fates ON fates.trajectory_key = assembled.trajectory_key
LEFT JOIN
(
    SELECT * FROM drops FINAL
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String}) AND unit_id IN
    (
        SELECT unit_id FROM drop_trajectories
        WHERE namespace = {namespace:String} AND trajectory_id = {trajectory:String}
    )
) AS drops ON drops.unit = fates.unit AND drops.unit_id = fates.unit_id AND drops.reason = fates.reason AND drops.stage = fates.stage
CROSS JOIN
(
    SELECT count() AS attempts, uniqExact(opening_hash) AS prompts FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND task = example.1 AND example_id = example.2
) AS attempts
LIMIT 1
