-- Every turn with its episode, its trajectory and the version that sampled it.
SELECT
    turns.namespace AS namespace,
    turns.episode_id AS episode_id,
    began.root_episode_id AS root_episode_id,
    assembled.trajectory_id AS trajectory_id,
    turns.event_id AS event_id,
    turns.sequence AS sequence,
    began.task AS task,
    began.agent AS agent,
    began.example_id AS example_id,
    began.labels AS labels,
    turns.function AS function,
    turns.model AS model,
    turns.policy_version AS policy_version,
    turns.completion_text AS answer,
    turns.finish_reason AS finish_reason,
    turns.prompt_tokens AS prompt_tokens,
    turns.completion_tokens AS completion_tokens,
    turns.latency_ms AS latency_ms,
    turns.trainable AS trainable,
    turns.untrainable_reason AS untrainable_reason,
    turns.occurred_at AS occurred_at
FROM
(
    SELECT *, cityHash64(episode_id) AS turn_episode FROM ${database}.turns FINAL
) AS turns
LEFT JOIN
(
    SELECT namespace, episode_key, root_episode_id, task, agent, example_id, labels FROM ${database}.episodes FINAL
) AS began ON began.namespace = turns.namespace AND began.episode_key = turns.turn_episode
LEFT JOIN
(
    SELECT namespace, episode_key, trajectory_id FROM ${database}.trajectories FINAL
) AS assembled ON assembled.namespace = turns.namespace AND assembled.episode_key = turns.turn_episode
