-- name: who_moved_this_model
-- Who moved the model, and by how much: by principal, source and label, who recorded or reported what was trained, its share of the absolute advantage of a step, and the evidence that it brought to promotions.
-- A report has moved a step if it was in force in the score that the step was trained by, not if it came later.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param label String = 'user' : name of the label
-- param limit UInt32 = 100 : most rows, the largest shares first
WITH
    members AS
    (
        SELECT
            step,
            group_id,
            trajectory_id,
            trajectory_key,
            abs(ifNull(advantage, 0)) AS weight,
            sum(abs(ifNull(advantage, 0))) OVER (PARTITION BY step) AS of_step
        FROM step_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
    ),
    -- The revision of the score that each was trained by; of one whose group is not written yet, any.
    scored AS
    (
        SELECT members.trajectory_id AS trained_id, max(ifNull(in_groups.revision, 9223372036854775807)) AS last_revision,
            true AS is_trained
        FROM members
        LEFT JOIN
        (
            SELECT group_id, trajectory_id, toNullable(score_revision) AS revision
            FROM group_members
            WHERE namespace = {namespace:String} AND run_id = {run:String}
        ) AS in_groups ON in_groups.group_id = members.group_id AND in_groups.trajectory_id = members.trajectory_id
        GROUP BY trained_id
    )
SELECT
    influence,
    principal,
    source,
    label,
    uniqExactMerge(rows_of_step.episodes) AS episodes,
    uniqExactArrayMerge(rows_of_step.reports) AS reports,
    uniqExactIfMerge(rows_of_step.trained) AS trained,
    countIf(rows_of_step.step > 0) AS steps,
    max(if(of_step = 0, 0, moved / of_step)) AS largest_share,
    sum(moved) / nullIf(sum(of_step), 0) AS mean_share,
    uniqExactIfMerge(rows_of_step.in_promotions) AS in_promotions
FROM
(
    SELECT
        said.influence AS influence,
        said.principal AS principal,
        said.source AS source,
        known.label AS label,
        members.step AS step,
        uniqExactState(said.trajectory_key) AS episodes,
        uniqExactArrayState(said.events) AS reports,
        uniqExactIfState(said.trajectory_key, members.step > 0) AS trained,
        sum(members.weight) AS moved,
        any(members.of_step) AS of_step,
        uniqExactIfState(said.trajectory_key, known.in_promotions) AS in_promotions
    FROM
    (
        SELECT 'recorded' AS influence, trajectory_key, principal, '' AS source, CAST([], 'Array(UInt64)') AS events,
            trajectory_key AS trained_key
        FROM trajectories FINAL
        WHERE namespace = {namespace:String}
        UNION ALL
        SELECT 'reported', trajectory_key, author, speaker, groupArray(event), if(max(was_heard), trajectory_key, 0)
        FROM
        (
            SELECT
                cityHash64(trajectory_id) AS trajectory_key,
                cityHash64(event_id) AS event,
                any(principal) AS author,
                any(source) AS speaker,
                any(scored.is_trained) AND argMaxIf(in_force, revision, revision <= scored.last_revision) AS was_heard,
                argMax(in_force, revision) AS is_in_force
            FROM trajectory_rewards
            LEFT JOIN scored ON scored.trained_id = trajectory_rewards.trajectory_id
            WHERE namespace = {namespace:String}
            GROUP BY trajectory_id, event_id
            HAVING was_heard OR is_in_force
        )
        GROUP BY trajectory_key, author, speaker
    ) AS said
    INNER JOIN
    (
        SELECT
            trajectory_key,
            any(labels[{label:String}]) AS label,
            max(length(served_versions) = 1 AND has(promoted.versions, served_versions[1])) AS in_promotions
        FROM scores FINAL
        CROSS JOIN
        (
            SELECT groupUniqArray(assumeNotNull(version)) AS versions
            FROM policy_decisions FINAL
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND action = 'promote'
        ) AS promoted
        WHERE namespace = {namespace:String}
        GROUP BY trajectory_key
    ) AS known ON known.trajectory_key = said.trajectory_key
    LEFT JOIN members ON members.trajectory_key = said.trained_key
    GROUP BY influence, principal, source, label, step
) AS rows_of_step
GROUP BY influence, principal, source, label
ORDER BY largest_share DESC, episodes DESC, influence, principal, source, label
LIMIT {limit:UInt32}
