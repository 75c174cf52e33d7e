-- name: who_moved_this_model
-- Who moved the model, and by how much: by principal, source and label, who recorded or reported what was trained, its share of the absolute advantage of a step, and the evidence that it brought to promotions.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param label String = 'user' : name of the label
-- param limit UInt32 = 100 : most rows, the largest shares first
SELECT
    influence,
    principal,
    source,
    label,
    sum(rows_of_step.episodes) AS episodes,
    sum(rows_of_step.reports) AS reports,
    sum(rows_of_step.trained) AS trained,
    countIf(rows_of_step.trained > 0) AS steps,
    max(if(of_step = 0, 0, moved / of_step)) AS largest_share,
    sum(moved) / nullIf(sum(of_step), 0) AS mean_share,
    sum(rows_of_step.in_promotions) AS in_promotions
FROM
(
    SELECT
        said.influence AS influence,
        said.principal AS principal,
        said.source AS source,
        known.label AS label,
        members.step AS step,
        uniqExact(said.trajectory_key) AS episodes,
        sum(said.reports) AS reports,
        uniqExactIf(said.trajectory_key, members.step > 0) AS trained,
        sum(members.weight) AS moved,
        any(members.of_step) AS of_step,
        uniqExactIf(said.trajectory_key, known.in_promotions) AS in_promotions
    FROM
    (
        SELECT 'recorded' AS influence, trajectory_key, principal, '' AS source, 0 AS reports
        FROM trajectories FINAL
        WHERE namespace = {namespace:String}
        UNION ALL
        SELECT 'reported', cityHash64(trajectory_id), principal, source, uniqExact(event_id)
        FROM trajectory_rewards FINAL
        WHERE namespace = {namespace:String} AND in_force
        GROUP BY trajectory_id, principal, source
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
    LEFT JOIN
    (
        SELECT
            step,
            trajectory_key,
            abs(ifNull(advantage, 0)) AS weight,
            sum(abs(ifNull(advantage, 0))) OVER (PARTITION BY step) AS of_step
        FROM step_members FINAL
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
    ) AS members ON members.trajectory_key = said.trajectory_key
    GROUP BY influence, principal, source, label, step
) AS rows_of_step
GROUP BY influence, principal, source, label
ORDER BY largest_share DESC, episodes DESC, influence, principal, source, label
LIMIT {limit:UInt32}
