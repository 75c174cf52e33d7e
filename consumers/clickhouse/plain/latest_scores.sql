-- The newest score of each trajectory.
SELECT *
FROM ${database}.scores FINAL
WHERE (namespace, trajectory_key, revision) NOT IN
(
    SELECT namespace, trajectory_key, arrayJoin(range(max(revision)))
    FROM ${database}.scores
    WHERE revision > 0
    GROUP BY namespace, trajectory_key
)
