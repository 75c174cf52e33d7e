-- name: funnel_influence
-- One row: whose the episodes since a time are, who moved most of what they trained, which episode moved most of a step of
-- eight groups with a signal or more, and why the run's canary waits.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = 'main' : run id
-- param since_ms Int64 = 0 : milliseconds since 1970, by the broker's clock
WITH
    fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AS since,
    recorded AS
    (
        SELECT trajectory_key, any(toString(principal)) AS principal
        FROM trajectories
        WHERE namespace = {namespace:String} AND kafka_timestamp >= since
        GROUP BY trajectory_key
    ),
    moved AS
    (
        SELECT recorded.principal AS principal, sum(members.weight) AS weight
        FROM
        (
            SELECT step, trajectory_key, max(abs(ifNull(advantage, 0))) AS weight
            FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
                AND kafka_timestamp >= since
            GROUP BY step, trajectory_key
        ) AS members
        INNER JOIN recorded ON recorded.trajectory_key = members.trajectory_key
        GROUP BY principal
    ),
    stepped AS
    (
        SELECT
            step,
            sum(weight) AS moved,
            argMax(trajectory_id, weight) AS trajectory,
            if(uniqExactIf(group_id, weight > 0) < 8, 0, ifNotFinite(max(weight) / moved, 0)) AS largest
        FROM
        (
            SELECT step, group_id, trajectory_id, max(abs(ifNull(advantage, 0))) AS weight
            FROM step_members
            WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate = 'trained'
                AND kafka_timestamp >= since
            GROUP BY step, group_id, trajectory_id
        )
        GROUP BY step
    ),
    decided AS
    (
        SELECT
            number,
            any(toString(action)) AS action,
            any(ifNull(canary, -1)) AS canary,
            any(toString(reason)) AS reason,
            any(toInt64(numbers['unbalanced'])) AS unbalanced
        FROM policy_decisions
        WHERE namespace = {namespace:String} AND run_id = {run:String}
        GROUP BY number
    ),
    began AS (SELECT maxIf(number, action = 'canary') AS first, argMax(canary, number) AS newest FROM decided)
SELECT
    (SELECT count() FROM recorded) AS recorded,
    (SELECT countIf(principal = '') FROM recorded) AS unsigned,
    (SELECT count() FROM moved) AS movers,
    (SELECT argMax(principal, (weight, principal)) FROM moved) AS mover,
    (SELECT ifNotFinite(max(weight) / sum(weight), 0) FROM moved) AS share,
    (SELECT max(largest) FROM stepped) AS largest,
    (SELECT argMax(trajectory, (largest, step)) FROM stepped) AS trajectory,
    (SELECT argMax(step, (largest, step)) FROM stepped) AS step,
    (SELECT newest FROM began) AS canary,
    (
        SELECT arraySort(groupUniqArray(reason)) FROM decided
        WHERE action = 'hold' AND number > (SELECT first FROM began)
    ) AS holds,
    (SELECT argMax(unbalanced, number) FROM decided WHERE number >= (SELECT first FROM began)) AS unbalanced
