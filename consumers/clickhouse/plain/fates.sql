-- The fate of every trajectory in every run, as `trajectory_fates` has it, with what a filter or a chart needs.
-- A replay that begins after assembly has no times of them. A sub-agent's has the labels of its root, too. The cluster is the first cell of the opening's sketch: openings with words in common share it.
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
    removed_runs AS
    (
        SELECT namespace, run
        FROM
        (
            SELECT namespace, toString(run_id) AS run, kafka_timestamp AS removed_at, toDateTime64(0, 3, 'UTC') AS configured_at
            FROM ${database}.run_commands
            WHERE command = 'removed'
            UNION ALL
            SELECT namespace, toString(run_id), toDateTime64(0, 3, 'UTC'), kafka_timestamp
            FROM ${database}.config_applied
        )
        GROUP BY namespace, run
        HAVING max(removed_at) > max(configured_at)
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
    mapUpdate(of_root.labels, found.labels) AS labels,
    found.opening_hash AS opening_hash,
    substring(score.sketch, 1, 2) AS cluster,
    score.model AS model,
    found.max_policy_version AS policy_version,
    found.tokens AS tokens,
    found.sampled_tokens AS sampled_tokens,
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
        (namespace, run) IN (SELECT namespace, run FROM removed_runs) AS is_removed,
        multiIf(countIf(said = 'trained') > 0, 'trained', countIf(said = 'dropped') > 0 OR is_removed, 'dropped',
            'pending') AS fate,
        if(fate = 'trained', minIf(in_step, said = 'trained'), NULL) AS step,
        if(fate = 'trained', '', argMinIf(drop_stage, (at, drop_stage), said = 'dropped')) AS stage,
        multiIf(fate = 'trained', '', countIf(said = 'dropped') > 0,
            argMinIf(drop_reason, (at, drop_stage), said = 'dropped'), is_removed, 'run_removed', '') AS reason
    FROM facts
    GROUP BY namespace, run, trajectory_key
) AS fates
LEFT JOIN
(
    SELECT namespace, trajectory_key, episode_id, root_episode_id, task, agent, example_id, labels, opening_hash,
        max_policy_version, tokens, sampled_tokens, closed_by, toNullable(started_at) AS started_at,
        toNullable(ended_at) AS ended_at
    FROM ${database}.trajectories FINAL
    UNION ALL
    SELECT namespace, trajectory_key, episode_id, '', task, agent, example_id, labels, opening_hash,
        max_policy_version, tokens, sampled_tokens, closed_by, NULL, NULL
    FROM ${database}.scores FINAL
    WHERE (namespace, trajectory_key) NOT IN (SELECT namespace, trajectory_key FROM ${database}.trajectories)
    ORDER BY revision DESC
    LIMIT 1 BY namespace, trajectory_key
) AS found ON found.namespace = fates.namespace AND found.trajectory_key = fates.trajectory_key
LEFT JOIN
(
    SELECT namespace, trajectory_key, argMax(tuple(value), revision).1 AS value, any(opening_sketch) AS sketch, any(toString(model)) AS model
    FROM ${database}.scores FINAL
    GROUP BY namespace, trajectory_key
) AS score ON score.namespace = fates.namespace AND score.trajectory_key = fates.trajectory_key
LEFT JOIN
(
    SELECT namespace, episode_id, labels FROM ${database}.trajectories FINAL
    WHERE (namespace, episode_id) IN
    (
        SELECT namespace, root_episode_id FROM ${database}.trajectories WHERE root_episode_id != episode_id
    )
) AS of_root ON of_root.namespace = found.namespace AND of_root.episode_id = found.root_episode_id
