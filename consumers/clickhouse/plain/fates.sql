-- The fate of every trajectory in every run, as `trajectory_fates` has it, with what a filter or a chart needs.
WITH
    every_run AS
    (
        SELECT namespace, groupUniqArray(run) AS runs
        FROM
        (
            SELECT DISTINCT namespace, toString(run_id) AS run FROM ${database}.config_applied WHERE run_id != ''
            UNION DISTINCT
            SELECT DISTINCT namespace, toString(run_id) FROM ${database}.groups
            UNION DISTINCT
            SELECT DISTINCT namespace, toString(run_id) FROM ${database}.steps
        )
        GROUP BY namespace
    ),
    facts AS
    (
        SELECT namespace, arrayJoin(runs) AS run, trajectory_key, trajectory_id AS id, '' AS said, 0 AS in_step,
            '' AS drop_reason, '' AS drop_stage, toDateTime64(0, 3, 'UTC') AS at
        FROM
        (
            SELECT namespace, trajectory_key, trajectory_id FROM ${database}.trajectories
            UNION ALL
            SELECT namespace, trajectory_key, trajectory_id FROM ${database}.scores
        ) AS known
        INNER JOIN every_run USING namespace
        UNION ALL
        SELECT namespace, toString(run_id), trajectory_key, trajectory_id, '', 0, '', '', toDateTime64(0, 3, 'UTC')
        FROM ${database}.group_members
        UNION ALL
        SELECT namespace, toString(run_id), trajectory_key, trajectory_id, toString(fate), step,
            ifNull(toString(reason), ''), 'trainer', ended_at
        FROM ${database}.step_members
        UNION ALL
        SELECT namespace, toString(run_id), trajectory_key, trajectory_id, 'dropped', 0,
            toString(reason), toString(stage), dropped_at
        FROM ${database}.drop_trajectories
        WHERE run_id != ''
        UNION ALL
        SELECT namespace, arrayJoin(runs), trajectory_key, trajectory_id, 'dropped', 0, reason, stage, dropped_at
        FROM
        (
            SELECT namespace, trajectory_key, trajectory_id, toString(reason) AS reason, toString(stage) AS stage,
                dropped_at
            FROM ${database}.drop_trajectories
            WHERE run_id = ''
        ) AS before_runs
        INNER JOIN every_run USING namespace
    )
SELECT
    fates.namespace AS namespace,
    fates.run AS run_id,
    fates.trajectory_id AS trajectory_id,
    found.episode_id AS episode_id,
    found.task AS task,
    found.agent AS agent,
    found.example_id AS example_id,
    found.labels AS labels,
    found.max_policy_version AS policy_version,
    score.value AS reward,
    fates.fate AS fate,
    fates.step AS step,
    fates.stage AS stage,
    fates.reason AS reason,
    found.closed_by AS closed_by,
    found.started_at AS started_at,
    found.ended_at AS ended_at
FROM
(
    SELECT
        namespace,
        run,
        trajectory_key,
        any(id) AS trajectory_id,
        multiIf(countIf(said = 'trained') > 0, 'trained', countIf(said = 'dropped') > 0, 'dropped', 'pending') AS fate,
        if(fate = 'trained', minIf(in_step, said = 'trained'), NULL) AS step,
        if(fate = 'trained', '', argMinIf(drop_stage, (at, drop_stage), said = 'dropped')) AS stage,
        if(fate = 'trained', '', argMinIf(drop_reason, (at, drop_stage), said = 'dropped')) AS reason
    FROM facts
    GROUP BY namespace, run, trajectory_key
) AS fates
LEFT JOIN
(
    SELECT *, trajectory_key FROM ${database}.trajectories FINAL
) AS found ON found.namespace = fates.namespace AND found.trajectory_key = fates.trajectory_key
LEFT JOIN
(
    SELECT namespace, trajectory_key, argMax(tuple(value), revision).1 AS value
    FROM ${database}.scores FINAL
    GROUP BY namespace, trajectory_key
) AS score ON score.namespace = fates.namespace AND score.trajectory_key = fates.trajectory_key
