"""What the counts say that a person should know, one sentence each, with the one thing to do.

Each finding is one function: counts and settings in, notices out. They explain; every rule that they explain is in the
stages, and no second copy of it is here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollbus.health.funnel.losses import advise_turns, explain_loss
from rollbus.health.funnel.numbers import REWARDED, FunnelNumbers, FunnelSettings, TurnCount, WaitingCount
from rollbus.producers.turns.advice import IN_EPISODE
from rollbus.runtime.health.alarms.problem import say_duration
from rollbus.schemas.drop_words import DropWords
from rollbus.schemas.ids import CONVERSATION_PREFIX
from rollbus.schemas.records.config import EVERY_NAME, FilterConfig, RewardConfig, ScoringConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.streams.rewards.registry import BUILT_IN, NEXT_TURN, NEXT_TURN_JUDGE

ROUND_TO_MS = 5_000
OUTSIZED = 0.25
"""Share of a step of eight groups with a signal. In its group an episode has half of the absolute advantage at most."""
OF_REPORTS: Mapping[str, DropWords] = {
    DropReason.UNRESOLVED_ALIAS: DropWords(
        "since no episode has taken their alias within {late}",
        "let the agent call `rb.alias(EPISODE, ALIAS)`, or report with the id that the episode has: `episode.id`",
    ),
    DropReason.ORPHANED_REWARD: DropWords(
        "since their episode never began, or ended more than {late} before",
        "report with the id that the episode has, `episode.id`; for later reports raise `assembly: late_horizon_ms:`",
    ),
    DropReason.REWARD_NOT_ALLOWED: DropWords(
        "since their source may not set this reward, or has not signed it",
        "give the reporter the key of its source (`signing: sources:`), or see `assembly: reward_sources:`",
    ),
    DropReason.TOO_MANY_REPORTS: DropWords(
        "since one principal has more of them on an episode than `assembly: max_reports:`",
        "raise it, if they are meant",
    ),
}
"""What the reason of a refused report means, and what the reporter changes; a loss's words are about episodes."""
OF_EVENTS: Mapping[str, DropWords] = {
    DropReason.DUPLICATE_CONFLICT: DropWords(
        "since another with the same id or key says something else",
        "an `episode_id` is of one episode; a changed verdict takes a `key` of its own, and names the first in "
        "`supersedes=`",
    ),
}
"""The same for the reasons of reports and of other events."""
PRODUCER_LOSSES: Mapping[str, DropWords] = {
    "calls_outside_episode": DropWords(
        "calls that are in no episode, and so are not recorded",
        f"make them {IN_EPISODE}",
    ),
    "events_dropped": DropWords(
        "events that never reached Kafka",
        "docs/capture-trouble.md; `rollbus.init(spool_folder=…)` keeps on disk what waits while Kafka is away",
    ),
    "hook_errors": DropWords("failures inside the recorder", "the log of its program has the error"),
}
"""Counter of a recorder, without its reason → what is lost, and what to do."""
REPORTS_ASTRAY = ("unread_rewards", "late_rewards", "waiting_reports")
PRINCIPAL = "principal"
"""The source of a share that is not a label: whose token signed the episode."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that would mend a finding."""

    place: tuple[str, ...]
    """Names from the top of the file, or from the run's own entry."""
    value: Any
    is_of_run: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """One finding."""

    code: str
    what: str
    remedy: str
    change: SettingChange | None = None
    """What `rollbus start` proposes; None where a person has to choose."""


def find_notices(numbers: FunnelNumbers, settings: FunnelSettings) -> tuple[Notice, ...]:
    """Return every finding, in the order of the funnel."""
    return tuple(notice for find in FINDINGS for notice in find(numbers, settings))


def find_reports_astray(notices: Iterable[Notice]) -> Notice | None:
    """Return the first finding on reports that were made and reach no score; None if there is none."""
    return next((notice for notice in notices if notice.code in REPORTS_ASTRAY), None)


def find_unapplied_settings(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that the workers apply other settings than those that are looked at: a file is read at a start."""
    other_stages = [
        stage
        for stage, config_hash in settings.hash_by_stage().items()
        if numbers.applied_hashes.get(stage, config_hash) != config_hash
    ]
    for replay in sorted({numbers.promoted[stage] for stage in other_stages if stage in numbers.promoted}):
        stages = [stage for stage in other_stages if numbers.promoted.get(stage) == replay]
        what = f"the workers apply what was promoted of replay {replay}, in {_name_sections(stages)}, and not this file"
        remedy = (
            f"write it into this file (`rollbus replay show {replay}` has it): it holds until this section of the file "
            "is changed and a worker starts with it"
        )
        yield Notice("promoted_settings", what, remedy)
    if stages := [stage for stage in other_stages if stage not in numbers.promoted]:
        what = (
            f"the workers apply other settings than these, in {_name_sections(stages)}: they read them at their start"
        )
        yield Notice("unapplied_settings", what, "start the workers again with this file, or look with theirs")


def _name_sections(stages: Iterable[str]) -> str:
    """Return the sections of a settings file that configure these stages."""
    section_by_stage = {"assembly": "assembly", "scoring": "scoring", "grouping": "runs"}
    return " and ".join(f"`{section_by_stage[stage]}:`" for stage in stages)


def find_untrainable_turns(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield each model and server whose turns cannot be trained, and why."""
    all_turns = sum(turns.turns for turns in numbers.turns)
    for turns in numbers.turns:
        if turns.reason:
            what = f"{turns.turns} of {all_turns} turns cannot be trained: {_say_verdict(turns)}"
            what += f"; recorded by {', '.join(turns.producers)}" if any(turns.producers) else ""
            yield Notice("untrainable_turns", what, advise_turns(turns.reason))


def _say_verdict(turns: TurnCount) -> str:
    server = f"the server that answers as {turns.model or 'a model without a name'}"
    server += f" at {turns.server}" if turns.server else ""
    if "token_ids" in turns.reason:
        return f"{server} gave no token ids ({turns.reason})"
    if turns.reason == "missing_logprobs":
        return f"{server} gave log-probs of which some are missing or impossible ({turns.reason})"
    if "logprobs" in turns.reason:
        return f"{server} gave no log-probs ({turns.reason})"
    return f"{turns.reason}, from {server}"


def find_unread_rewards(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield each name of a report that no component of the scores reads."""
    names = names_read(settings.scoring)
    if names is None:
        return
    unread = [rewards.name for rewards in numbers.rewards if rewards.name not in names]
    components = [_describe_component(reward) for reward in settings.scoring.rewards]
    components += [{"type": _type_for(name), "name": name} for name in unread]
    change = SettingChange(("scoring", "rewards"), components)
    for rewards in numbers.rewards:
        if rewards.name not in names:
            read = ", ".join(sorted(names)) or "none"
            what = f"{rewards.reports} reports are named {rewards.name!r}, which no component reads (read: {read})"
            kind = _type_for(rewards.name)
            remedy = (
                f"add `{{type: {kind}, name: {rewards.name}}}` to `scoring: rewards:` and start the workers again, or "
                "report under another name"
            )
            yield Notice("unread_rewards", what, remedy, change)


def _type_for(name: str) -> str:
    """Return the type of the component that reads reports of a name: a conversation's are words, and no values."""
    return NEXT_TURN if name == NEXT_TURN else "feedback"


def _describe_component(reward: RewardConfig) -> dict[str, Any]:
    """Return a component as a settings file has it."""
    return {"type": reward.type, "name": reward.name, **reward.model_dump(mode="json", exclude_defaults=True)}


def names_read(scoring: ScoringConfig) -> frozenset[str] | None:
    """Return the names of reports that count; None if any may, as with a function of the user's own."""
    if any(reward.type not in BUILT_IN for reward in scoring.rewards):
        return None
    readers = [reward for reward in scoring.rewards if BUILT_IN[reward.type].reads_feedback]
    names = frozenset(
        NEXT_TURN if reward.type in (NEXT_TURN, NEXT_TURN_JUDGE) else str(reward.options.get("report") or reward.name)
        for reward in readers
    )
    return None if EVERY_NAME in names else names


def find_late_rewards(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield each name whose reports come later than scores wait, with the median and the value to set."""
    for rewards in numbers.rewards:
        if rewards.late:
            value_ms = -(-round(rewards.most_ms) // ROUND_TO_MS) * ROUND_TO_MS + ROUND_TO_MS
            what = (
                f"{rewards.late} of {rewards.reports} reports named {rewards.name!r} came too late for their "
                f"score: half of them within {say_duration(rewards.median_ms)} of the episode's end (the median), nine "
                f"of ten within {say_duration(rewards.most_ms)}"
            )
            change = SettingChange(("grouping", "reward_wait_ms"), value_ms, is_of_run=True)
            yield Notice("late_rewards", what, f"`runs: grouping: reward_wait_ms: {value_ms}`", change)


def find_waiting_reports(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that reports wait for an alias that no episode has, or for an episode that has not begun."""
    horizon = say_duration(settings.assembly.late_horizon_ms)
    for count in numbers.waiting:
        report = "report waits" if count.reports == 1 else "reports wait"
        if count.kind == "episode":
            what = f"{count.reports} {report} for an episode that has not begun, such as {count.example!r}"
        elif count.example.startswith(CONVERSATION_PREFIX):
            conversation = count.example.removeprefix(CONVERSATION_PREFIX)
            what = f"{count.reports} {report} for a conversation without an episode, such as {conversation!r}"
        else:
            what = f"{count.reports} {report} for an alias that no episode has, such as {count.example!r}"
        yield Notice("waiting_reports", f"{what}; what waits is given up after {horizon}", _advise_report(count))


def _advise_report(count: WaitingCount) -> str:
    """Return how a report finds its episode."""
    name = count.example
    if count.kind == "episode":
        return "report with the id that the episode has (`episode.id`), or with an alias of it"
    if name.startswith(CONVERSATION_PREFIX):
        return f"open its episodes with `conversation={name.removeprefix(CONVERSATION_PREFIX)!r}`, as they are reported"
    return f"let the agent call `rb.alias(EPISODE, {name!r})`, or report with the id that the episode has: `episode.id`"


def find_refused_events(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield each reason for which reports and other events do not count: they cost no episode by themselves."""
    for count in numbers.refused:
        loss = explain_loss(count.reason)
        why, remedy = f"since their episodes {loss.what}", loss.remedy
        if words := OF_REPORTS.get(count.reason) or OF_EVENTS.get(count.reason):
            why, remedy = words.what.format(late=say_duration(settings.assembly.late_horizon_ms)), words.remedy
        event = "report" if count.reason in OF_REPORTS else "event"
        events = f"{event} does" if count.events == 1 else f"{event}s do"
        example = f": {count.example}" if count.example else ""
        yield Notice("refused_events", f"{count.events} {events} not count ({count.reason}), {why}{example}", remedy)


def find_lost_by_producers(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield what recorders did not record or send: no episode shows it, since nothing of it is in the log."""
    for lost in numbers.lost:
        counter, _, reason = lost.counter.partition(".")
        words = PRODUCER_LOSSES[counter]
        what = f"{words.what}{f' ({reason})' if reason else ''}: {lost.number}, counted by {_name(lost.producers)}"
        yield Notice("lost_by_producers", what, words.remedy)


def find_unsigned_evidence(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that a canary is judged by episodes that nobody signed."""
    influence = numbers.influence
    if settings.run.delivery is not None and influence.unsigned:
        what = (
            f"{influence.unsigned} of {influence.recorded} episodes are signed by nobody: a producer that gives up "
            "what it does not like among them can stop a canary"
        )
        remedy = "`rollbus token create NAME --may record,feedback` for each producer (docs/security-producers.md)"
        yield Notice("unsigned_evidence", what, remedy)


def find_held_canary(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield why a canary waits, and how much of its evidence does not count."""
    influence = numbers.influence
    if settings.run.delivery is None or influence.canary < 0:
        return
    remedy = "`rollbus sql run who_moved_this_model` shows whose; `rollbus policy promote` or `reject` decides"
    if influence.holds:
        what = f"version {influence.canary} is held as the canary: {', '.join(influence.holds)}"
        yield Notice("held_canary", what, "see docs/delivery.md, When something is wrong; " + remedy)
    if influence.unbalanced:
        what = (
            f"{influence.unbalanced} episodes do not count for or against version {influence.canary} (unbalanced): "
            "their principal has more of them than chance gives, or than `delivery: max_share_per_principal:`"
        )
        yield Notice("unbalanced_evidence", what, remedy)


def find_outsized_episode(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that one episode moved most of a step: a rare success, or a reward of another size than all others'."""
    influence = numbers.influence
    if influence.largest > OUTSIZED:
        what = (
            f"trajectory {influence.trajectory} alone has {influence.largest:.0%} of the absolute advantage of step "
            f"{influence.step}: its reward is far from those of the other groups"
        )
        remedy = (
            "`scoring: {clip_low: …, clip_high: …}` bounds what one reward can be; if it is a rare success, a larger "
            "`batching: groups_per_step:` gives it less of a step"
        )
        yield Notice("outsized_episode", what, remedy)


def find_share_without_bound(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield how much of the training one of several principals moved, where no bound is set."""
    influence, bounds = numbers.influence, settings.run.batching.max_share_per_source
    if influence.movers > 1 and PRINCIPAL not in bounds:
        what = (
            f"{influence.movers} principals recorded what was trained, and {influence.mover or 'what nobody signed'} "
            f"has {influence.share:.0%} of the absolute advantage: they take turns, and no bound is set"
        )
        remedy = "`runs: batching: {max_share_per_source: {principal: SHARE}}` sets one (docs/security-influence.md)"
        yield Notice("share_without_bound", what, remedy)


def find_short_groups(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that groups wait for members who never come."""
    run, grouping = numbers.run, settings.run.grouping
    if run.short_groups:
        what = (
            f"{run.short_groups} groups closed with {run.members_of_short:.1f} of {grouping.group_size} members on "
            f"average, after {say_duration(grouping.window_ms)}: the others never came"
        )
        remedy = (
            "give the attempts at one example one `example_id`, attempt each more often, or hold what comes once "
            "against what its task has earned: `grouping: strategy: adaptive` (docs/grouping.md)"
        )
        yield Notice("short_groups", what, remedy)


def find_waiting_beginners(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that most episodes with a reward are in no group yet, and what they wait for."""
    grouping = settings.run.grouping
    rewarded = [count for count in numbers.episodes if count.reached >= REWARDED]
    waiting = sum(count.episodes for count in rewarded if count.reached == REWARDED and not count.dropped_by)
    if grouping.strategy == "adaptive" and waiting * 2 > sum(count.episodes for count in rewarded) and waiting > 1:
        what = (
            f"{waiting} episodes have a reward and are in no group yet: the first attempts of a task wait until two of "
            f"their rewards differ, in each partition, and {say_duration(grouping.window_ms)} at most"
        )
        remedy = (
            "nothing, if verdicts differ; if all are equal so far, nothing can be learned from them: give the agent "
            "tasks that it can do now and then (docs/grouping.md)"
        )
        yield Notice("waiting_beginners", what, remedy)


def find_other_prompts(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that attempts at one example begin with different prompts, where that is checked."""
    run = numbers.run
    if run.prompts_of_example:
        what = f"example {run.mismatched_example!r} began with {run.prompts_of_example} prompts besides its group's"
        yield Notice("other_prompts", what, "leave the check for equal prompts off, or give other examples other ids")


def find_no_signal(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that most groups have nothing to learn from."""
    run = numbers.run
    without = run.groups - run.groups_with_signal
    if without and without * 2 >= run.groups:
        what = f"{without} of {run.groups} groups have equal rewards, and nothing can be learned from them"
        yield Notice("no_signal", what, "`rollbus sql run groups-without-signal` has the tasks: too easy, or too hard?")


def find_other_model(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that the agent asks for another model, or for versions, that the learner does not serve."""
    run, trained_models = settings.run, settings.run.filter.models or (settings.run.model,)
    models = {turns.model for turns in numbers.turns if turns.model}
    if models and not models & set(trained_models):
        what = (
            f"the agent is answered by {_name(models)}, and run {run.run_id} trains {_name(trained_models)}: "
            "the learner serves no version that the agent asked for"
        )
        yield Notice("other_model", what, f"let the agent ask for {trained_models[0]}, or set `runs: model:`")
        return
    versions = {version for turns in numbers.turns if turns.model in trained_models for version in turns.versions}
    strangers = sorted(versions - {0, *numbers.run.versions})
    if strangers and versions == set(strangers):
        what = f"versions {_name(map(str, strangers))} of {run.model} answer the agent, and this run never made them: "
        what += "the learner serves no version that the agent asked for"
        yield Notice("other_versions", what, "point the agent at this stack's model service; see `rollbus policy list`")


def find_empty_filter(numbers: FunnelNumbers, settings: FunnelSettings) -> Iterable[Notice]:
    """Yield that a run's filter admits nothing of what was scored."""
    scored = sum(count.episodes for count in numbers.episodes if count.is_assembled)
    outside = sum(count.episodes for count in numbers.episodes if count.dropped_by == DropReason.NOT_TARGETED)
    if outside and outside == scored and settings.run.filter != FilterConfig():  # else its model is the matter
        conditions = _describe_filter(settings.run.filter)
        run = numbers.run
        has = ", ".join(
            f"{name} {_name(values)}"
            for name, values in (("tasks", run.tasks), ("agents", run.agents), ("models", run.models))
            if any(values)
        )
        what = (
            f"the filter of run {settings.run.run_id} ({conditions}) matches none of {scored} episodes, "
            f"which have {has}"
        )
        is_of_tasks = settings.run.filter == FilterConfig(tasks=settings.run.filter.tasks) and any(run.tasks)
        change = SettingChange(("filter", "tasks"), sorted(filter(None, run.tasks)), is_of_run=True)
        remedy = "correct `runs: filter:`, or the names that the agent records"
        yield Notice("empty_filter", what, remedy, change if is_of_tasks else None)


def _describe_filter(run_filter: FilterConfig) -> str:
    lists = (("tasks", run_filter.tasks), ("agents", run_filter.agents), ("models", run_filter.models))
    parts = [f"{name} {_name(values)}" for name, values in lists if values]
    parts += [f"label {name}={value}" for name, value in sorted(run_filter.labels.items())]
    return ", ".join(parts)


def _name(values: Iterable[str]) -> str:
    names = sorted(set(values))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(name or "(none)" for name in names[:5]) + more


Find = Callable[[FunnelNumbers, FunnelSettings], Iterable[Notice]]
FINDINGS: tuple[Find, ...] = (
    find_unapplied_settings,
    find_empty_filter,
    find_other_model,
    find_untrainable_turns,
    find_unread_rewards,
    find_late_rewards,
    find_waiting_reports,
    find_refused_events,
    find_lost_by_producers,
    find_short_groups,
    find_waiting_beginners,
    find_other_prompts,
    find_no_signal,
    find_outsized_episode,
    find_share_without_bound,
    find_unsigned_evidence,
    find_held_canary,
)
