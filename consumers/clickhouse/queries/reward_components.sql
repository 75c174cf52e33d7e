-- name: reward_components
-- Which reward component drives the change: its mean over the first and the last versions, and its part of the change.
-- Of fewer versions than both ends ask for, each end has half; the middle one of an odd number is in neither.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param model String = '' : only this model; empty means all
-- param versions UInt32 = 5 : how many versions at either end
WITH
    by_version AS
    (
        SELECT
            max_policy_version AS version,
            sumMap(mapKeys(components), mapValues(components)) AS sums,
            count() AS trajectories,
            sum(value) AS reward
        FROM latest_scores(namespace = {namespace:String})
        WHERE ({model:String} = '' OR model = {model:String})
            AND value IS NOT NULL AND max_policy_version IS NOT NULL
        GROUP BY version
    ),
    ranked AS
    (
        SELECT
            *,
            row_number() OVER (ORDER BY version) AS from_first,
            row_number() OVER (ORDER BY version DESC) AS from_last,
            least({versions:UInt32}, intDiv(count() OVER (), 2)) AS width
        FROM by_version
    ),
    totals AS
    (
        SELECT
            sumIf(trajectories, from_first <= width) AS first_count,
            sumIf(trajectories, from_last <= width) AS last_count,
            sumIf(reward, from_last <= width) / last_count
                - sumIf(reward, from_first <= width) / first_count AS reward_change
        FROM ranked
    )
SELECT
    toString(component) AS component,
    sumIf(total, from_first <= width) / any(totals.first_count) AS first_mean,
    sumIf(total, from_last <= width) / any(totals.last_count) AS last_mean,
    last_mean - first_mean AS change,
    any(totals.reward_change) AS reward_change
FROM ranked
CROSS JOIN totals
ARRAY JOIN sums.1 AS component, sums.2 AS total
WHERE width > 0
GROUP BY component
ORDER BY abs(change) DESC, component
