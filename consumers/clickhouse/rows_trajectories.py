"""Trajectories, revised rewards and scores → their tables; a trajectory's tokens stand in `histories`."""

from collections.abc import Iterable

from rollbus.consumers.clickhouse.origin import Origin, Rows, time_ms
from rollbus.schemas.tokens import decode_logprobs, decode_token_ids, token_count
from rollbus.schemas.trajectories import History, Reward, RewardRevised, Score, Trajectory, Turn


def trajectory(record: Trajectory, origin: Origin) -> Rows:
    """Return the trajectory, its turns, the rewards it went out with and its token histories."""
    versions = [span.policy_version for history in record.histories for span in history.spans]
    row = origin.row(
        trajectory_id=record.trajectory_id,
        episode_id=record.episode_id,
        root_episode_id=record.root_episode_id,
        parent_episode_id=record.parent_episode_id,
        task=record.task,
        example_id=record.example_id,
        group_id=record.group_id,
        group_size=record.group_size,
        group_hint=record.group_hint,
        agent=record.agent,
        producer=record.producer,
        environment=record.environment,
        labels=dict(record.labels),
        resampled=record.resampled,
        started_at=time_ms(record.started_at_ms),
        ended_at=time_ms(record.ended_at_ms),
        assembled_at=time_ms(record.assembled_at_ms),
        closed_by=record.closed_by,
        stop_reason=record.stop_reason,
        turns=len(record.turns),
        tools=len(record.tools),
        rewards=len(record.rewards),
        histories=len(record.histories),
        tokens=sum(token_count(history.token_ids) for history in record.histories),
        sampled_tokens=sum(token_count(history.logprobs) for history in record.histories),
        min_policy_version=min(versions, default=None),
        max_policy_version=max(versions, default=None),
        opening_hash=record.opening_hash,
        prompt_hash=record.prompt_hash,
        tools_hash=record.tools_hash,
        trainable=record.trainable,
        untrainable_reason=record.untrainable_reason,
        config_hash=record.config_hash,
    )
    rows: Rows = [("trajectories", row)]
    rows += [_turn(record, index, turn, origin) for index, turn in enumerate(record.turns)]
    rows += _rewards(record, 0, record.assembled_at_ms, record.rewards, origin)
    rows += [_history(record, index, history, origin) for index, history in enumerate(record.histories)]
    return rows


def _turn(record: Trajectory, index: int, turn: Turn, origin: Origin) -> tuple[str, dict[str, object]]:
    return "trajectory_turns", origin.row(
        trajectory_id=record.trajectory_id,
        episode_id=record.episode_id,
        turn=index,
        event_id=turn.event_id,
        function=turn.function,
        model=turn.model,
        policy_version=turn.policy_version,
        temperature=turn.temperature,
        top_p=turn.top_p,
        top_k=turn.top_k,
        min_p=turn.min_p,
        frequency_penalty=turn.frequency_penalty,
        presence_penalty=turn.presence_penalty,
        repetition_penalty=turn.repetition_penalty,
        finish_reason=turn.finish_reason,
        logprob_mode=turn.logprob_mode,
        prompt_tokens=turn.prompt_tokens,
        completion_tokens=turn.completion_tokens,
        latency_ms=turn.latency_ms,
        trainable=turn.trainable,
        untrainable_reason=turn.untrainable_reason,
        started_at=time_ms(record.started_at_ms),
        occurred_at=time_ms(turn.occurred_at_ms),
    )


def _history(record: Trajectory, index: int, history: History, origin: Origin) -> tuple[str, dict[str, object]]:
    return "histories", origin.row(
        trajectory_id=record.trajectory_id,
        episode_id=record.episode_id,
        history=index,
        token_ids=decode_token_ids(history.token_ids),
        logprobs=decode_logprobs(history.logprobs),
        span_starts=[span.start for span in history.spans],
        span_ends=[span.end for span in history.spans],
        span_turns=[span.turn for span in history.spans],
        span_policy_versions=[span.policy_version for span in history.spans],
        started_at=time_ms(record.started_at_ms),
    )


def _rewards(
    record: Trajectory | RewardRevised, revision: int, revised_at_ms: int, rewards: Iterable[Reward], origin: Origin
) -> Rows:
    return [
        (
            "trajectory_rewards",
            origin.row(
                trajectory_id=record.trajectory_id,
                episode_id=record.episode_id,
                revision=revision,
                event_id=reward.event_id,
                name=reward.name,
                value=reward.value,
                turn_event_id=reward.turn_event_id,
                source=reward.source,
                revised_at=time_ms(revised_at_ms),
            ),
        )
        for reward in rewards
    ]


def reward_revised(record: RewardRevised, origin: Origin) -> Rows:
    """Return the revision and the rewards that stand since."""
    row = origin.row(
        trajectory_id=record.trajectory_id,
        episode_id=record.episode_id,
        group_hint=record.group_hint,
        revision=record.revision,
        rewards=len(record.rewards),
        excluded=record.excluded,
        revised_at=time_ms(record.revised_at_ms),
    )
    return [
        ("reward_revisions", row),
        *_rewards(record, record.revision, record.revised_at_ms, record.rewards, origin),
    ]


def score(record: Score, origin: Origin) -> Rows:
    """Return the score; its location says where the trajectory's bytes stand."""
    row = origin.row(
        trajectory_id=record.trajectory_id,
        episode_id=record.episode_id,
        revision=record.revision,
        location_topic=record.location.topic,
        location_partition=record.location.partition,
        location_offset=record.location.offset,
        task=record.task,
        example_id=record.example_id,
        group_id=record.group_id,
        group_size=record.group_size,
        group_hint=record.group_hint,
        agent=record.agent,
        labels=dict(record.labels),
        resampled=record.resampled,
        model=record.model,
        prompt_hash=record.prompt_hash,
        tools_hash=record.tools_hash,
        opening_hash=record.opening_hash,
        tokens=record.tokens,
        sampled_tokens=record.sampled_tokens,
        longest_history_tokens=record.longest_history_tokens,
        min_policy_version=record.min_policy_version,
        max_policy_version=record.max_policy_version,
        stop_reason=record.stop_reason,
        trainable=record.trainable,
        untrainable_reason=record.untrainable_reason,
        outcome=record.outcome,
        value=record.value,
        components=dict(record.components),
        reward_version=record.reward_version,
        error=record.error,
        excluded=record.excluded,
        config_hash=record.config_hash,
    )
    return [("scores", row)]
