-- name: dead_letters_by_class
-- Records that could not be processed, by stage, topic and error, with the place and message of the newest.
-- A record that several consumers refused counts once, for the first stage; the sink counts only where no stage refused it.
-- What an operator has set aside is left out. `rollbus status` counts the same records without stage `sink`, as long as Kafka
-- keeps their letters.
-- param namespace String = 'rollbus.' : prefix of the log's topics
-- chart records
SELECT
    first_stage AS stage,
    topic,
    first_class AS error_class,
    count() AS records,
    sum(letters_of_record) AS letters,
    arraySort(groupUniqArrayArray(stages)) AS refused_by,
    min(at) AS first_seen,
    max(at) AS last_seen,
    argMax(concat(toString(partition), ':', toString(offset)), (at, offset)) AS newest_place,
    argMax(text, (at, offset)) AS newest_message
FROM
(
    SELECT
        topic,
        partition,
        offset,
        any(timestamp) AS at,
        count() AS letters_of_record,
        groupArray(toString(stage)) AS stages,
        argMin((toString(stage), toString(error_class), message), (stage = 'sink', kafka_timestamp, stage)) AS first,
        first.1 AS first_stage,
        first.2 AS first_class,
        first.3 AS text
    FROM dead_letters FINAL
    WHERE namespace = {namespace:String} AND NOT (stage = 'operator' AND error_class = 'SetAside')
        AND (topic, partition, offset) NOT IN
        (
            SELECT topic, partition, offset FROM dead_letters
            WHERE namespace = {namespace:String} AND stage = 'operator' AND error_class = 'SetAside'
        )
    GROUP BY topic, partition, offset
)
GROUP BY stage, topic, error_class
ORDER BY records DESC, stage, topic, error_class
