-- name: open_episodes
-- Episodes that have begun and are not assembled: since when, their newest event, and when each is given up, the oldest
-- first. An agent that was killed leaves such episodes, and one that has paused, such as to ask a person. No time means that no worker has run with a configuration yet.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- param limit UInt32 = 1000 : most rows
SELECT episode_id, began_at, newest_event_at, has_ended, is_paused, given_up_at
FROM open_episodes(namespace = {namespace:String})
ORDER BY began_at, episode_id
LIMIT {limit:UInt32}
