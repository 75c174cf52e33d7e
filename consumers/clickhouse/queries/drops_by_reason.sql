-- name: drops_by_reason
-- Dropped units, counted by stage, unit and reason, with the newest detail.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param run String = '' : only this run and the stages before it; empty means all runs
SELECT
    stage,
    unit,
    reason,
    run_id,
    count() AS drops,
    sum(trajectories) AS trajectories,
    max(dropped_at) AS newest,
    argMax(detail, dropped_at) AS newest_detail
FROM (SELECT * FROM drops FINAL WHERE namespace = {namespace:String})
WHERE {run:String} = '' OR run_id IN ('', {run:String})
GROUP BY stage, unit, reason, run_id
ORDER BY drops DESC, stage, unit, reason, run_id
