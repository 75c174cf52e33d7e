-- What queries start from.

-- The newest score of each trajectory: latest_scores(namespace = 'rollbus.').
-- Few scores are revised, so leaving out those that were is cheaper than finding the newest of each.
CREATE OR REPLACE VIEW latest_scores AS
SELECT *, trajectory_key
FROM scores FINAL
WHERE namespace = {namespace:String}
    AND (trajectory_key, revision) NOT IN
    (
        SELECT trajectory_key, arrayJoin(range(max(revision)))
        FROM scores
        WHERE namespace = {namespace:String} AND revision > 0
        GROUP BY trajectory_key
    );

-- Episodes that are excluded, forgotten ones among them; those of an excluded root episode are excluded, too.
CREATE OR REPLACE VIEW excluded_episodes AS
SELECT episode_id FROM events WHERE namespace = {namespace:String} AND kind = 'Excluded'
UNION DISTINCT
SELECT episode_id FROM scores WHERE namespace = {namespace:String} AND excluded
UNION DISTINCT
SELECT episode_id FROM reward_revisions WHERE namespace = {namespace:String} AND excluded
UNION DISTINCT
SELECT unit_id FROM drops WHERE namespace = {namespace:String} AND reason = 'excluded' AND unit = 'episode';

-- Whether a run has left the settings since its newest configuration: what waits in it is dropped then.
CREATE OR REPLACE VIEW removed_run AS
SELECT
    (
        SELECT max(kafka_timestamp) FROM run_commands
        WHERE namespace = {namespace:String} AND run_id = {run:String} AND command = 'removed'
    ) > (
        SELECT max(kafka_timestamp) FROM config_applied
        WHERE namespace = {namespace:String} AND run_id = {run:String}
    ) AS is_removed;

-- What decides a trajectory's fate, a row each. The least `mark` of a trajectory wins: to be trained, by step; then the first
-- drop, by time and then by the first letters of its stage. Its upper half is the step or, above all steps, that time and those
-- letters; its lower half a hash of stage and reason. One number is compared several times faster than what it stands for.
CREATE OR REPLACE VIEW fate_records AS
SELECT
    trajectory_key,
    trajectory_id AS id,
    if(fate = 'trained', step, 0) AS in_step,
    if(fate = 'trained', '', toString(ifNull(reason, ''))) AS drop_reason,
    if(fate = 'trained', '', 'trainer') AS drop_stage,
    if(fate = 'trained', '', 'trajectory') AS drop_unit,
    if(fate = 'trained', '', trajectory_id) AS drop_unit_id,
    mark
FROM step_members
WHERE namespace = {namespace:String} AND run_id = {run:String}
UNION ALL
SELECT trajectory_key, trajectory_id, 0, toString(reason), toString(stage), toString(unit), unit_id, mark
FROM drop_trajectories
WHERE namespace = {namespace:String} AND run_id IN ('', {run:String});

-- Trajectories whose fate a record decided. No aggregate is harmed by repeats, so no FINAL is needed. A question about few
-- trajectories joins them with this view: what it lacks is pending, or dropped with its run.
CREATE OR REPLACE VIEW decided_fates AS
SELECT
    any(id) AS trajectory_id,
    trajectory_key,
    if(min(mark) < bitShiftLeft(toUInt128(1), 126), 'trained', 'dropped') AS fate,
    if(fate = 'trained', toInt64(bitShiftRight(min(mark), 64)), 0) AS step,
    argMin(drop_reason, mark) AS reason,
    toString(argMin(drop_stage, mark)) AS stage,
    toString(argMin(drop_unit, mark)) AS unit,
    argMin(drop_unit_id, mark) AS unit_id,
    uniqExactIf(in_step, in_step > 0) AS times_trained,
    max(in_step) > step AND step > 0 AS trained_again
FROM fate_records(namespace = {namespace:String}, run = {run:String})
GROUP BY trajectory_key;

-- Trajectories that have or will have a fate. A replay that begins after assembly has none of its own, and knows those
-- that it scored or compared.
CREATE OR REPLACE VIEW known_trajectories AS
SELECT trajectory_key, trajectory_id
FROM trajectories
WHERE namespace = {namespace:String}
UNION ALL
SELECT trajectory_key, trajectory_id
FROM scores
WHERE namespace = {namespace:String}
UNION ALL
SELECT trajectory_key, trajectory_id
FROM group_members
WHERE namespace = {namespace:String} AND run_id = {run:String};

-- The one definition of a trajectory's fate: decided, or pending while no record has decided it.
CREATE OR REPLACE VIEW trajectory_fates AS
WITH (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    any(id) AS trajectory_id,
    trajectory_key,
    multiIf(min(mark) < bitShiftLeft(toUInt128(1), 126), 'trained',
        min(mark) < bitShiftLeft(toUInt128(1), 127) OR is_removed, 'dropped', 'pending') AS fate,
    if(fate = 'trained', toInt64(bitShiftRight(min(mark), 64)), 0) AS step,
    if(min(mark) = bitShiftLeft(toUInt128(1), 127) AND is_removed, 'run_removed', argMin(drop_reason, mark)) AS reason,
    toString(argMin(drop_stage, mark)) AS stage,
    toString(argMin(drop_unit, mark)) AS unit,
    argMin(drop_unit_id, mark) AS unit_id,
    uniqExactIf(in_step, in_step > 0) AS times_trained,
    max(in_step) > step AND step > 0 AS trained_again
FROM
(
    SELECT trajectory_key, id, in_step, drop_reason, drop_stage, drop_unit, drop_unit_id, mark
    FROM fate_records(namespace = {namespace:String}, run = {run:String})
    UNION ALL
    SELECT trajectory_key, trajectory_id, 0, '', '', '', '', bitShiftLeft(toUInt128(1), 127)
    FROM known_trajectories(namespace = {namespace:String}, run = {run:String})
)
GROUP BY trajectory_key;

-- How many trajectories have each fate: marks are counted before they become words, in about half the time.
CREATE OR REPLACE VIEW counted_fates AS
WITH (SELECT is_removed FROM removed_run(namespace = {namespace:String}, run = {run:String})) AS is_removed
SELECT
    multiIf(rank = 0, 'trained', rank = 1 OR is_removed, 'dropped', 'pending') AS fate,
    words.stage AS stage,
    if(rank = 2 AND is_removed, 'run_removed', words.reason) AS reason,
    counts.trajectories AS trajectories,
    counts.trained_again AS trained_again
FROM
(
    SELECT
        (least >= bitShiftLeft(toUInt128(1), 126)) + (least >= bitShiftLeft(toUInt128(1), 127)) AS rank,
        toUInt64(least) AS cause,
        count() AS trajectories,
        countIf(rank = 0 AND newest_step > toInt64(bitShiftRight(least, 64))) AS trained_again
    FROM
    (
        SELECT min(mark) AS least, max(in_step) AS newest_step
        FROM
        (
            SELECT trajectory_key, mark, in_step
            FROM fate_records(namespace = {namespace:String}, run = {run:String})
            UNION ALL
            SELECT trajectory_key, bitShiftLeft(toUInt128(1), 127), 0
            FROM known_trajectories(namespace = {namespace:String}, run = {run:String})
        )
        GROUP BY trajectory_key
    )
    GROUP BY rank, cause
) AS counts
LEFT JOIN
(
    SELECT cityHash64(toString(stage), toString(reason)) AS cause, toString(stage) AS stage, toString(reason) AS reason
    FROM drop_trajectories
    WHERE namespace = {namespace:String} AND run_id IN ('', {run:String})
    GROUP BY cause, stage, reason
    UNION DISTINCT
    SELECT cityHash64('trainer', toString(ifNull(reason, ''))), 'trainer', toString(ifNull(reason, ''))
    FROM step_members
    WHERE namespace = {namespace:String} AND run_id = {run:String} AND fate != 'trained'
    GROUP BY reason
) AS words ON words.cause = counts.cause;

-- Episodes that have begun and have neither a trajectory nor a drop: open_episodes(namespace = 'rollbus.'). One is given
-- up once no event of its own has come for the time that assembly is set to; what is said of it keeps it open no longer.
-- One that has paused is waited for longer; is_paused: nothing has resumed it yet.
-- `open_among` asks about one episode, without a look at all others, or about all with an empty one.
CREATE OR REPLACE VIEW open_among AS
WITH
    (
        SELECT argMax((JSONExtractInt(content, 'inactivity_ms'), JSONExtractInt(content, 'gap_grace_ms'),
            JSONExtractInt(content, 'pause_ms')), kafka_timestamp)
        FROM config_applied
        WHERE namespace = {namespace:String} AND stage = 'assembly'
    ) AS patience,
    -- an array, as ClickHouse works a scalar out once and a table at each place that names it
    (
        SELECT groupArray((id, at))
        FROM
        (
            SELECT any(episode_id) AS id, min(kafka_timestamp) AS at
            FROM episodes
            WHERE namespace = {namespace:String} AND ({episode:String} = '' OR episode_id = {episode:String})
                AND episode_key NOT IN
                (
                    SELECT episode_key FROM trajectories
                    WHERE namespace = {namespace:String} AND ({episode:String} = '' OR episode_id = {episode:String})
                )
                AND episode_key NOT IN
                (
                    SELECT cityHash64(unit_id) FROM drops
                    WHERE namespace = {namespace:String} AND unit = 'episode' AND ({episode:String} = '' OR unit_id = {episode:String})
                )
            GROUP BY episode_key
        )
    ) AS begun
SELECT
    open_one.1 AS episode_id,
    open_one.2 AS began_at,
    of_episode.newest AS newest_event_at,
    of_episode.ended > 0 AS has_ended,
    of_episode.ended = 0 AND of_episode.paused = toUnixTimestamp64Milli(of_episode.newest) AS is_paused,
    if(patience.1 = 0, NULL, fromUnixTimestamp64Milli(least(
        greatest(toUnixTimestamp64Milli(of_episode.newest) + patience.1,
            if(of_episode.paused > 0, of_episode.paused + patience.3, 0)),
        if(of_episode.ended > 0, of_episode.ended + patience.2, toInt64(9000000000000))
    ), 'UTC')) AS given_up_at
FROM (SELECT arrayJoin(begun) AS open_one, open_one.1 AS id) AS begun_episodes
INNER JOIN
(
    SELECT episode_id, max(kafka_timestamp) AS newest,
        maxIf(toUnixTimestamp64Milli(kafka_timestamp), kind = 'EpisodeEnded') AS ended,
        maxIf(toUnixTimestamp64Milli(kafka_timestamp), kind = 'WriterClosed' AND JSONExtractBool(detail, 'paused')) AS paused
    FROM events
    WHERE namespace = {namespace:String} AND kind NOT IN ('RewardReported', 'Excluded')
        AND episode_id IN (SELECT arrayJoin(begun).1)
    GROUP BY episode_id
) AS of_episode ON of_episode.episode_id = begun_episodes.id;

CREATE OR REPLACE VIEW open_episodes AS
SELECT * FROM open_among(namespace = {namespace:String}, episode = '');

-- Each report that was in force in the score that a trajectory was trained by: a row for each step and report. A score whose
-- group is not written yet counts as the newest.
CREATE OR REPLACE VIEW trained_reports AS
SELECT
    members.namespace AS namespace, members.run_id AS run_id, members.step AS step,
    members.group_id AS group_id, members.trajectory_key AS trajectory_key, written.event_id AS event_id,
    any(members.trajectory_id) AS trajectory_id,
    any(members.at) AS trained_at,
    any(members.version) AS version,
    any(members.advantage) AS advantage,
    any(members.sampled_tokens) AS sampled_tokens,
    any(written.episode_id) AS episode_id,
    toString(any(written.name)) AS reward,
    argMaxIf(written.value, written.revision,
        written.revision <= ifNull(scored.revision, 9223372036854775807)) AS amount,
    toString(any(written.source)) AS speaker,
    toString(any(written.principal)) AS author,
    min(written.revised_at) AS taken_at
FROM trajectory_rewards AS written
INNER JOIN
(
    SELECT
        namespace, toString(run_id) AS run_id, group_id, trajectory_id, trajectory_key, step, ended_at AS at,
        policy_version AS version, advantage, sampled_tokens
    FROM step_members FINAL
    WHERE fate = 'trained'
) AS members ON members.namespace = written.namespace AND members.trajectory_id = written.trajectory_id
LEFT JOIN
(
    SELECT namespace, toString(run_id) AS run_id, group_id, trajectory_id, toNullable(score_revision) AS revision
    FROM group_members FINAL
) AS scored
    ON scored.namespace = members.namespace AND scored.run_id = members.run_id
    AND scored.group_id = members.group_id AND scored.trajectory_id = members.trajectory_id
GROUP BY namespace, run_id, step, group_id, trajectory_key, event_id
HAVING argMaxIf(written.in_force, written.revision,
    written.revision <= ifNull(scored.revision, 9223372036854775807));

-- Every place in the log that has a row, once per row: stored_places(namespace = 'rollbus.').
CREATE OR REPLACE VIEW stored_places AS
SELECT kafka_topic, kafka_partition, kafka_offset
FROM merge(currentDatabase(), '^(events|trajectories|reward_revisions|scores|groups|curriculum_states|batches|steps|step_outcomes|policy_versions|policy_decisions|evaluations|run_commands|drops|dead_letters|producer_reports|config_applied|replays|data_set_members)$')
WHERE namespace = {namespace:String};
