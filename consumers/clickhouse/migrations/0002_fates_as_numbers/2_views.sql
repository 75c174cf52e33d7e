-- What decides a trajectory's fate, a row each. The least `mark` wins: to be trained, by step; then the first drop, by time
-- and then by its stage. Stored with the row, as one number is compared several times faster than what it stands for.
CREATE OR REPLACE VIEW fate_records AS
SELECT
    trajectory_key,
    trajectory_id AS id,
    if(fate = 'trained', step, 0) AS in_step,
    if(fate = 'trained', '', toString(ifNull(reason, ''))) AS drop_reason,
    if(fate = 'trained', '', 'trainer') AS drop_stage,
    if(fate = 'trained', '', 'trajectory') AS drop_unit,
    if(fate = 'trained', '', trajectory_id) AS drop_unit_id,
    mark
FROM step_members
WHERE namespace = {namespace:String} AND run_id = {run:String}
UNION ALL
SELECT trajectory_key, trajectory_id, 0, toString(reason), toString(stage), toString(unit), unit_id, mark
FROM drop_trajectories
WHERE namespace = {namespace:String} AND run_id IN ('', {run:String});

-- Trajectories whose fate a record decided. No aggregate is harmed by repeats, so no FINAL is needed. A question about few
-- trajectories joins them with this view: what it lacks is pending, or dropped with its run.
CREATE OR REPLACE VIEW decided_fates AS
SELECT
    any(id) AS trajectory_id,
    trajectory_key,
    if(min(mark) < bitShiftLeft(toUInt128(1), 126), 'trained', 'dropped') AS fate,
    if(fate = 'trained', toInt64(bitShiftRight(min(mark), 64)), 0) AS step,
    argMin(drop_reason, mark) AS reason,
    toString(argMin(drop_stage, mark)) AS stage,
    toString(argMin(drop_unit, mark)) AS unit,
    argMin(drop_unit_id, mark) AS unit_id,
    uniqExactIf(in_step, in_step > 0) AS times_trained,
    max(in_step) > step AND step > 0 AS trained_again
FROM fate_records(namespace = {namespace:String}, run = {run:String})
GROUP BY trajectory_key;

-- Trajectories that have or will have a fate. A replay that begins after assembly has none of its own, and knows those
-- that it scored or compared.
CREATE OR REPLACE VIEW known_trajectories AS
SELECT trajectory_key, trajectory_id
FROM trajectories
WHERE namespace = {namespace:String}
UNION ALL
SELECT trajectory_key, trajectory_id
FROM scores
WHERE namespace = {namespace:String}
UNION ALL
SELECT trajectory_key, trajectory_id
FROM group_members
WHERE namespace = {namespace:String} AND run_id = {run:String};

-- The one definition of a trajectory's fate: decided, or pending while no record has decided it.
CREATE OR REPLACE VIEW trajectory_fates AS
WITH (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    any(id) AS trajectory_id,
    trajectory_key,
    multiIf(min(mark) < bitShiftLeft(toUInt128(1), 126), 'trained',
        min(mark) < bitShiftLeft(toUInt128(1), 127) OR is_removed, 'dropped', 'pending') AS fate,
    if(fate = 'trained', toInt64(bitShiftRight(min(mark), 64)), 0) AS step,
    if(min(mark) = bitShiftLeft(toUInt128(1), 127) AND is_removed, 'run_removed', argMin(drop_reason, mark)) AS reason,
    toString(argMin(drop_stage, mark)) AS stage,
    toString(argMin(drop_unit, mark)) AS unit,
    argMin(drop_unit_id, mark) AS unit_id,
    uniqExactIf(in_step, in_step > 0) AS times_trained,
    max(in_step) > step AND step > 0 AS trained_again
FROM
(
    SELECT trajectory_key, id, in_step, drop_reason, drop_stage, drop_unit, drop_unit_id, mark
    FROM fate_records(namespace = {namespace:String}, run = {run:String})
    UNION ALL
    SELECT trajectory_key, trajectory_id, 0, '', '', '', '', bitShiftLeft(toUInt128(1), 127)
    FROM known_trajectories(namespace = {namespace:String}, run = {run:String})
)
GROUP BY trajectory_key;

-- How many trajectories have each fate: marks are counted before they become words, in about half the time.
CREATE OR REPLACE VIEW counted_fates AS
WITH (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    multiIf(rank = 0, 'trained', rank = 1 OR is_removed, 'dropped', 'pending') AS fate,
    words.stage AS stage,
    if(rank = 2 AND is_removed, 'run_removed', words.reason) AS reason,
    counts.trajectories AS trajectories,
    counts.trained_again AS trained_again
FROM
(
    SELECT
        (least >= bitShiftLeft(toUInt128(1), 126)) + (least >= bitShiftLeft(toUInt128(1), 127)) AS rank,
        toUInt64(least) AS cause,
        count() AS trajectories,
        countIf(rank = 0 AND newest_step > toInt64(bitShiftRight(least, 64))) AS trained_again
    FROM
    (
        SELECT min(mark) AS least, max(in_step) AS newest_step
        FROM
        (
            SELECT trajectory_key, mark, in_step
            FROM fate_records(namespace = {namespace:String}, run = {run:String})
            UNION ALL
            SELECT trajectory_key, bitShiftLeft(toUInt128(1), 127), 0
            FROM known_trajectories(namespace = {namespace:String}, run = {run:String})
        )
        GROUP BY trajectory_key
    )
    GROUP BY rank, cause
) AS counts
LEFT JOIN
(
    SELECT cityHash64(toString(stage), toString(reason)) AS cause, toString(stage) AS stage, toString(reason) AS reason
    FROM drop_trajectories
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
    GROUP BY cause, stage, reason
    UNION DISTINCT
    SELECT cityHash64('trainer', toString(ifNull(reason, ''))), 'trainer', toString(ifNull(reason, ''))
    FROM step_members
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate != 'trained'
    GROUP BY reason
) AS words ON words.cause = counts.cause;
