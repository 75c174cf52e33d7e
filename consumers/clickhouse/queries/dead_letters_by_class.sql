-- name: dead_letters_by_class
-- Records that could not be processed, by stage, topic and error, with the place and message of the newest.
-- param namespace String = 'rollbus.' : prefix of the log's topics
SELECT
    stage,
    topic,
    error_class,
    count() AS letters,
    min(timestamp) AS first_seen,
    max(timestamp) AS last_seen,
    argMax(concat(toString(partition), ':', toString(offset)), (timestamp, offset)) AS newest_place,
    argMax(message, (timestamp, offset)) AS newest_message
FROM (SELECT * FROM dead_letters FINAL WHERE namespace = {namespace:String})
GROUP BY stage, topic, error_class
ORDER BY letters DESC, stage, topic, error_class
