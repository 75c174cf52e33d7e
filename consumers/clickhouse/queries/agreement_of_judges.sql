-- name: agreement_of_judges
-- How far two judges agree: the cases, or turns of them, that both judged under one name, how often with the same value, kappa (1 is full agreement, 0 is chance), correlation and mean difference.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param reward String = '' : only verdicts of this name; empty means all
-- chart kappa
WITH verdicts AS
(
    SELECT trajectory_id, turn, reward, judge, argMax(amount, (at, event_id)) AS value
    FROM
    (
        SELECT
            trajectory_id,
            event_id,
            argMax(ifNull(turn_event_id, ''), revision) AS turn,
            argMax(toString(name), revision) AS reward,
            argMax(if(principal = '', 'operator', toString(principal)), revision) AS judge,
            argMax(trajectory_rewards.value, revision) AS amount,
            argMax(in_force, revision) AS is_in_force,
            max(revised_at) AS at
        FROM trajectory_rewards
        WHERE namespace = {namespace:String} AND source IN ('operator', 'judge')
        GROUP BY trajectory_id, event_id
    )
    WHERE is_in_force AND ({reward:String} = '' OR reward = {reward:String})
    GROUP BY trajectory_id, turn, reward, judge
)
SELECT
    one.reward AS reward,
    one.judge AS judge,
    other.judge AS other_judge,
    count() AS cases,
    countIf(one.value = other.value) / cases AS same_share,
    if(by_chance < 1, (same_share - by_chance) / (1 - by_chance), 1) AS kappa,
    if(isFinite(corrStable(one.value, other.value) AS found), found, NULL) AS correlation,
    avg(other.value - one.value) AS mean_difference,
    arraySum(each -> countEqual(groupArray(one.value), each) * countEqual(groupArray(other.value), each),
        groupUniqArray(one.value)) / pow(cases, 2) AS by_chance
FROM verdicts AS one
INNER JOIN verdicts AS other
    ON other.trajectory_id = one.trajectory_id AND other.turn = one.turn AND other.reward = one.reward
WHERE one.judge < other.judge
GROUP BY reward, judge, other_judge
ORDER BY cases DESC, reward, judge, other_judge
