-- The one definition of a trajectory's fate: trajectory_fates(namespace = 'rollbus.', run = 'main').
-- Trained wins over dropped; of several drops the first counts; what is neither is pending.

CREATE OR REPLACE VIEW trajectory_fates AS
WITH
    seen AS
    (
        SELECT trajectory_id FROM trajectories WHERE namespace = {namespace:String}
        UNION DISTINCT
        SELECT trajectory_id FROM scores WHERE namespace = {namespace:String}
        UNION DISTINCT
        SELECT trajectory_id FROM group_members WHERE namespace = {namespace:String} AND run_id = {run:String}
        UNION DISTINCT
        SELECT trajectory_id FROM step_members WHERE namespace = {namespace:String} AND run_id = {run:String}
        UNION DISTINCT
        SELECT trajectory_id FROM drop_trajectories
        WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
    ),
    trained AS
    (
        SELECT trajectory_id, min(step) AS trained_in_step, uniqExact(step) AS times_trained
        FROM step_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
        GROUP BY trajectory_id
    ),
    dropped AS
    (
        SELECT
            trajectory_id,
            argMin(reason, (at, stage)) AS drop_reason,
            argMin(stage, (at, stage)) AS dropped_by,
            argMin(unit, (at, stage)) AS dropped_unit,
            argMin(unit_id, (at, stage)) AS dropped_unit_id
        FROM
        (
            SELECT trajectory_id, reason, stage, unit, unit_id, dropped_at AS at
            FROM drop_trajectories FINAL
            WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
            UNION ALL
            SELECT trajectory_id, assumeNotNull(reason), 'trainer', 'trajectory', trajectory_id, ended_at
            FROM step_members FINAL
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'dropped'
        )
        GROUP BY trajectory_id
    )
SELECT
    seen.trajectory_id AS trajectory_id,
    multiIf(trained.times_trained > 0, 'trained', dropped.drop_reason != '', 'dropped', 'pending') AS fate,
    trained.trained_in_step AS step,
    if(trained.times_trained > 0, '', dropped.drop_reason) AS reason,
    if(trained.times_trained > 0, '', dropped.dropped_by) AS stage,
    if(trained.times_trained > 0, '', dropped.dropped_unit) AS unit,
    if(trained.times_trained > 0, '', dropped.dropped_unit_id) AS unit_id,
    trained.times_trained AS times_trained
FROM seen
LEFT JOIN trained ON trained.trajectory_id = seen.trajectory_id
LEFT JOIN dropped ON dropped.trajectory_id = seen.trajectory_id
SETTINGS join_use_nulls = 0;
