-- name: rewards_of_step
-- Which rewards trained a step: each member with its reward and advantage, and a row for each component and each report:
-- its value, source and time, and whether it is in force, earlier than another of its name, superseded, or too late.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param step Int64 = 0 : number of the step; 0 means the newest that has members
-- id step = step
WITH
    chosen AS
    (
        SELECT group_id, trajectory_id, any(batch_hash) AS batch
        FROM step_members
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
            AND step = if({step:Int64} != 0, {step:Int64}, (
                SELECT max(step) FROM step_members
                WHERE namespace = {namespace:String} AND run_id = {run:String} AND {step:Int64} = 0
            ))
        GROUP BY group_id, trajectory_id
    ),
    members AS
    (
        SELECT trajectory_id, any(group_id) AS of_group, any(episode_id) AS episode, any(reward) AS reward,
            any(advantage) AS advantage, any(components) AS components, any(score_revision) AS revision,
            any(kafka_timestamp) AS closed
        FROM group_members
        WHERE namespace = {namespace:String} AND run_id = {run:String}
            AND (group_id, trajectory_id) IN (SELECT group_id, trajectory_id FROM chosen)
        GROUP BY trajectory_id
    ),
    -- Reports of the members' episodes, and those that a root passed down: each as it stood at the score's revision.
    written AS
    (
        SELECT rows.trajectory_id AS trajectory_id, rows.event_id AS event_id, toString(any(rows.name)) AS name,
            toString(any(rows.source)) AS source,
            argMaxIf(rows.value, rows.revision, rows.revision <= members.revision) AS value,
            argMaxIf(rows.in_force, rows.revision, rows.revision <= members.revision) AS in_force,
            min(rows.revision) <= any(members.revision) AS in_time,
            any(rows.turn_event_id IS NULL) AS on_episode
        FROM trajectory_rewards AS rows
        INNER JOIN members ON members.trajectory_id = rows.trajectory_id
        WHERE rows.namespace = {namespace:String} AND rows.trajectory_id IN (SELECT trajectory_id FROM members)
        GROUP BY trajectory_id, event_id
    ),
    said AS
    (
        SELECT episode_id, event_id, toString(any(name)) AS name, toString(any(source)) AS source, any(value) AS value,
            any(retracted) AS retracted, min(kafka_timestamp) AS at, max(kafka_offset) AS place,
            any(turn_event_id IS NULL) AS on_episode
        FROM rewards
        WHERE namespace = {namespace:String} AND episode_id IN (SELECT episode FROM members)
        GROUP BY episode_id, event_id
    ),
    replaced AS
    (
        SELECT assumeNotNull(supersedes) AS event_id
        FROM rewards
        WHERE namespace = {namespace:String} AND episode_id IN (SELECT episode FROM members) AND supersedes IS NOT NULL
    ),
    reports AS
    (
        SELECT
            members.trajectory_id AS trajectory_id,
            if(said.name = '', written.name, said.name) AS name,
            if(said.name = '', toNullable(written.value), said.value) AS value,
            if(said.name = '', written.source, said.source) AS source,
            if(said.name = '', NULL, toNullable(said.at)) AS at,
            said.place AS place,
            multiIf(
                said.retracted, 'retraction',
                written.event_id != '' AND written.in_time AND written.in_force, 'in force',
                said.event_id IN (SELECT event_id FROM replaced), 'superseded',
                said.at > members.closed OR (written.event_id != '' AND NOT written.in_time), 'too late',
                'not in force') AS state,
            if(said.name = '', written.on_episode, said.on_episode) AS on_episode
        FROM members
        INNER JOIN said ON said.episode_id = members.episode
        LEFT JOIN written ON written.trajectory_id = members.trajectory_id AND written.event_id = said.event_id
        UNION ALL
        SELECT members.trajectory_id, written.name, toNullable(written.value), written.source, NULL, 0,
            if(written.in_time AND written.in_force, 'in force', 'superseded'), written.on_episode
        FROM written
        INNER JOIN members ON members.trajectory_id = written.trajectory_id
        WHERE written.event_id NOT IN (SELECT event_id FROM said)
    ),
    components AS
    (
        SELECT trajectory_id, toString(component.1) AS name, component.2 AS value
        FROM members
        ARRAY JOIN CAST(components, 'Array(Tuple(String, Float64))') AS component
    )
SELECT
    positions.position AS group,
    members.episode AS episode_id,
    members.reward AS reward,
    members.advantage AS advantage,
    lines.component AS component,
    lines.value AS value,
    lines.source AS source,
    lines.at AS at,
    lines.state AS state
FROM
(
    SELECT trajectory_id, name AS component, toNullable(value) AS value, 'score' AS source,
        CAST(NULL, 'Nullable(DateTime64(3, \'UTC\'))') AS at, 'in force' AS state, 0 AS rank, 0 AS place
    FROM components
    WHERE (trajectory_id, name) NOT IN (SELECT trajectory_id, name FROM reports WHERE state = 'in force')
    UNION ALL
    SELECT trajectory_id, name, value, source, at,
        if(state = 'in force' AND on_episode AND place < max(if(state = 'in force' AND on_episode, place, 0))
            OVER (PARTITION BY trajectory_id, name), 'earlier', state), 1, place
    FROM reports
) AS lines
INNER JOIN members ON members.trajectory_id = lines.trajectory_id
LEFT JOIN
(
    SELECT group_id, any(position) AS position
    FROM batch_groups
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND batch_hash IN (SELECT batch FROM chosen)
    GROUP BY group_id
) AS positions ON positions.group_id = members.of_group
ORDER BY group, episode_id, component, rank, at, lines.place
