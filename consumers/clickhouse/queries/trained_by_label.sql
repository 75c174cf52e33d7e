-- name: trained_by_label
-- What one user's (or tenant's, …) traffic trained: steps and versions that learned from episodes with a label, and the rest.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param label String = 'user' : name of the label
-- param value String = '' : value of the label
-- chart trajectories
WITH theirs AS
(
    SELECT trajectory_id, sampled_tokens
    FROM trajectories FINAL
    WHERE namespace = {namespace:String} AND labels[{label:String}] = {value:String}
        AND mapContains(labels, {label:String})
)
SELECT
    if(members.trajectory_id != '', members.fate, 'not in a step') AS fate,
    members.reason AS reason,
    members.step AS step,
    members.policy_version AS policy_version,
    count() AS trajectories,
    sum(theirs.sampled_tokens) AS sampled_tokens,
    sum(abs(members.advantage)) AS advantage_size,
    groupArray(5)(theirs.trajectory_id) AS some_of_them
FROM theirs
LEFT JOIN
(
    SELECT trajectory_id, fate, reason, step, policy_version, advantage
    FROM step_members FINAL
    WHERE namespace = {namespace:String} AND run_id = {run:String}
        AND trajectory_id IN (SELECT trajectory_id FROM theirs)
) AS members ON members.trajectory_id = theirs.trajectory_id
GROUP BY fate, reason, step, policy_version
ORDER BY step = 0, step, fate, reason
