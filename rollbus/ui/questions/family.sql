-- name: family
-- An episode's root and all episodes below it: who called whom, with reward and fate.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param episode String = '' : any episode of the family
WITH
    -- ids are arrays, as ClickHouse works a scalar out once and a table at each place that names it
    (
        SELECT groupUniqArray(root_episode_id) FROM episodes
        WHERE namespace = {namespace:String} AND episode_id = {episode:String}
    ) AS roots,
    (
        SELECT groupUniqArray(episode_id) FROM episodes
        WHERE namespace = {namespace:String} AND root_episode_id IN (SELECT arrayJoin(roots))
    ) AS member_ids,
    (
        SELECT groupUniqArray(trajectory_key) FROM trajectories
        WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(member_ids))
    ) AS assembled_keys,
    (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    members.episode_id AS episode_id,
    members.parent_episode_id AS parent_episode_id,
    members.root_episode_id AS root_episode_id,
    members.task AS task,
    members.agent AS agent,
    assembled.trajectory_id AS trajectory_id,
    score.value AS reward,
    multiIf(assembled.trajectory_id = '', '', fates.fate != '', fates.fate, is_removed, 'dropped', 'pending') AS fate,
    if(assembled.trajectory_id != '' AND fates.fate = '' AND is_removed, 'run_removed', fates.reason) AS reason
FROM
(
    SELECT * FROM episodes FINAL
    WHERE namespace = {namespace:String} AND episode_id IN (SELECT arrayJoin(member_ids))
) AS members
LEFT JOIN
(
    SELECT trajectory_id, trajectory_key, episode_id FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND trajectory_key IN (SELECT arrayJoin(assembled_keys))
) AS assembled ON assembled.episode_id = members.episode_id
LEFT JOIN
(
    SELECT trajectory_key, value FROM latest_scores(namespace = {namespace:String})
    WHERE trajectory_key IN (SELECT arrayJoin(assembled_keys))
) AS score ON score.trajectory_key = assembled.trajectory_key
LEFT JOIN
(
    SELECT trajectory_key, fate, reason FROM decided_fates(namespace = {namespace:String}, run = {run:String})
    WHERE trajectory_key IN (SELECT arrayJoin(assembled_keys))
) AS fates ON fates.trajectory_key = assembled.trajectory_key
ORDER BY members.started_at, members.episode_id
LIMIT 1000
