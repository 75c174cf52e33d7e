"""A version's way: candidate → canary → serving, or rejected, or quarantined; per run, decided on its log alone.

At each tick the episodes that have waited long enough are counted; then the canary is stopped, held, given a larger
share, or served to all. Every change is one `PolicyDecision`, whose newest record alone says who serves. A command
names the decision that its operator knew: of two operators who decide at once, the second is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from rollbus.schemas.records.config import DeliveryConfig
from rollbus.schemas.records.delivery import DeliveryAction, DeliveryCommand, EpisodeObserved, PolicyDecision
from rollbus.schemas.records.steps import Evaluation, PolicyState, PolicyVersion
from rollbus.schemas.topics import DELIVERY_LOG, POLICY_DECISIONS, POLICY_VERSIONS, RUN_LOG
from rollbus.streams.stages.delivery.checks import (
    CheckFinding,
    check_numbers,
    check_version,
    forget_before,
    keep_evaluation,
)
from rollbus.streams.stages.delivery.metric_verdicts import (
    REWARD,
    MetricVerdict,
    count,
    findings,
    known_episodes,
    missing_metrics,
    numbers,
    rewarded_episodes,
)
from rollbus.streams.stages.delivery.state import DeliveryState, DeliveryVersion
from rollbus.streams.stages.delivery.waiting import follow, update_wait
from rollbus.streams.state.configured_stage import RunStage
from rollbus.streams.state.rows import KeptRecord
from rollbus.streams.state.stage import Incoming, Outgoing

UNSERVED = 50
"""So many of the canary's episodes in a row that went elsewhere: its checkpoint is gone, or no router serves it."""
MISSING = "missing:"
"""Begins the reason where a metric is not known of the canary."""
OUTSIDE = f"outside:{REWARD}"
"""The reason where a reward of either version lay outside its declared bounds: what was clipped proves nothing good."""
UNBALANCED = "unbalanced"
"""The reason where the canary has more or fewer of the episodes that nobody signed than chance gives it."""
ONE_PRINCIPAL = "one_principal:"
"""Begins the reason where a metric is worse only by the episodes of one principal, which has less than half of them."""
STOPPED: tuple[PolicyState, ...] = ("quarantined", "rolled_back")
"""States that a version never leaves."""


class DeliveryStage(RunStage[DeliveryState]):
    """Decides who serves one run's model."""

    configured_as = "delivery"
    input = DELIVERY_LOG

    def new_state(self) -> DeliveryState:
        """Return the empty state of a partition."""
        return DeliveryState(self._config)

    def step(self, state: DeliveryState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one record of the delivery log; records of other runs and models change nothing."""
        state.ensure_rebuilt()
        record = incoming.record
        if isinstance(record, PolicyVersion):
            change = f"version {record.version} {record.state} {record.changed_at_ms}"
            is_own = record.model == state.config.value.model and state.is_first_time(change)
            return self._follow_version(state, record) if is_own else ()
        if isinstance(record, Evaluation):
            measurement = f"evaluation {record.evaluation_id} {record.evaluated_at_ms}"
            is_own = record.model == state.config.value.model and state.is_first_time(measurement)
            return self._take_in(state, record) if is_own else ()
        if not isinstance(record, EpisodeObserved | DeliveryCommand):
            return self.step_control(state, record)
        if record.run_id != self.run_id:
            return ()
        if isinstance(record, DeliveryCommand):
            return self._answer(state, record) if state.is_first_time(f"command {record.command_id}") else ()
        self._keep(state, record, incoming.data)
        return ()

    def pass_time(self, state: DeliveryState) -> Iterator[Outgoing]:
        """Count the episodes that have waited, judge the canary, or begin with the next one."""
        config = state.config.value.delivery
        due = state.due.due(state.clock.now_ms)
        if config is None:
            return
        rows = [(row.order, key, row) for key in due if (row := state.waiting.get(key))]
        for _, key, row in sorted(rows, key=lambda row: row[:2]):
            count(state, config, state.config.value.model, row.get())
            state.end_wait(key)
        if state.followed.rows:
            update_wait(state, config)
        if state.head.canary is None:
            yield from self._begin_with_newest(state, config)
        elif rows:
            yield from self._judge(state, config, state.head.canary)

    def _keep(self, state: DeliveryState, record: EpisodeObserved, data: bytes) -> None:
        """Let an episode of the canary's time wait for its rewards; a revision replaces one that still waits."""
        key, head, config = record.trajectory_id, state.head, state.config.value.delivery
        if config is None:
            return
        if key in state.followed.rows:
            follow(state, config, record)
        row = state.waiting.get(key)
        if row is not None:
            if record.excluded:
                state.end_wait(key)
            elif record.revision > row.get().revision:
                state.waiting.put(key, KeptRecord(data, row.arrived_ms, row.order, record))
            return
        if record.excluded or not head.share_at(record.first_seen_ms):
            return
        if record.revision:
            if key in state.seen and state.is_first_time(f"{key} revision {record.revision}"):
                state.head = replace(head, late=head.late + 1)
            return
        if state.is_first_time(key):
            state.order += 1
            wait_ms = config.wait_ms if head.wait_ms is None else head.wait_ms
            state.wait(key, KeptRecord(data, state.clock.now_ms, state.order, record), wait_ms)
            follow(state, config, record)

    # What the evidence says

    def _judge(self, state: DeliveryState, config: DeliveryConfig, canary: int) -> Iterator[Outgoing]:
        verdicts, head = findings(state, config), state.head
        worse = [verdict for verdict in verdicts if verdict.verdict == "worse"]
        if fatal := [verdict for verdict in worse if verdict.metric.on_worse == "quarantine"]:
            measures = numbers(state, config)
            yield from self._quarantine(state, config, canary, f"worse:{fatal[0].metric.name}", measures)
            return
        yield from self._report_alarms(state, config, canary, worse)
        in_doubt = [f"{ONE_PRINCIPAL}{verdict.metric.name}" for verdict in verdicts if verdict.rests_on_one]
        yield from self._report_unproven(state, config, canary, in_doubt)
        episodes = rewarded_episodes(state)
        if state.head.unserved >= UNSERVED:
            yield from self._stop(state, config, canary, "reject", "not_served")
        elif episodes >= config.max_episodes:
            yield from self._stop(state, config, canary, "reject", "undecided")
        elif not in_doubt and not state.head.held and episodes - head.episodes_before >= config.min_episodes:
            yield from self._move_on(state, config, canary, verdicts, episodes)

    def _move_on(
        self, state: DeliveryState, config: DeliveryConfig, canary: int, verdicts: list[MetricVerdict], episodes: int
    ) -> Iterator[Outgoing]:
        unproven = [f"{MISSING}{metric.name}" for metric in missing_metrics(state, config)]
        unproven += [OUTSIDE] if state.head.outside else []
        unproven += [] if state.is_unsigned_by_chance() else [UNBALANCED]
        yield from self._report_unproven(state, config, canary, unproven)
        head = state.head
        if unproven:
            return
        if head.step + 1 < len(config.steps):
            share = config.steps[head.step + 1]
            shares = (*head.shares, (state.clock.now_ms, share))
            measures = numbers(state, config)
            state.head = replace(
                head,
                step=head.step + 1,
                shares=shares,
                episodes_before=episodes,
                known_before=tuple(sorted(known_episodes(state).items())),
                noticed=tuple(name for name in head.noticed if not name.startswith(MISSING)),
            )
            yield self._decide(state, "advance", canary, "enough_episodes", measures=measures)
        elif verdicts[0].verdict in ("better", "not_worse"):
            yield from self._serve(state, "promote", canary, f"{verdicts[0].verdict}:{REWARD}")

    def _report_unproven(
        self, state: DeliveryState, config: DeliveryConfig, canary: int, reasons: list[str]
    ) -> Iterator[Outgoing]:
        """Report each reason once in a step: the canary stays at its share."""
        for reason in reasons:
            head = state.head
            if reason not in head.noticed:
                state.head = replace(head, noticed=(*head.noticed, reason))
                yield self._decide(state, "hold", canary, reason, measures=numbers(state, config))

    def _report_alarms(
        self, state: DeliveryState, config: DeliveryConfig, canary: int, worse: list[MetricVerdict]
    ) -> Iterator[Outgoing]:
        """Report each alarm once, and hold the canary where the settings say so."""
        for verdict in worse:
            name, head = verdict.metric.name, state.head
            if name in head.noticed:
                continue
            hold_reason = f"worse:{name}" if verdict.metric.on_worse == "hold" else head.held
            state.head = replace(head, noticed=(*head.noticed, name), held=hold_reason)
            yield self._decide(state, "hold", canary, f"worse:{name}", verdict.metric.on_worse, numbers(state, config))

    def _quarantine(
        self, state: DeliveryState, config: DeliveryConfig, version: int, reason: str, measures: Mapping[str, float]
    ) -> Iterator[Outgoing]:
        """Give all traffic back if the version is the canary, and mark what was trained on top of it."""
        if state.head.canary == version:
            yield from self._stop(state, config, version, "quarantine", reason, measures=measures)
        else:
            yield self._decide(state, "quarantine", version, reason, measures=measures)
            yield from self._mark(state, version, "quarantined", reason)
        for name, other in list(state.versions.rows.items()):
            if other.state == "candidate" and state.descends_from(int(name), "quarantined") is not None:
                yield from self._mark(state, int(name), "quarantined", f"descends from {version}, {reason}")

    # What moves a version

    def _begin_with_newest(self, state: DeliveryState, config: DeliveryConfig) -> Iterator[Outgoing]:
        head = state.head
        if head.frozen or head.serving is None or state.clock.now_ms < head.cool_until_ms:
            return
        untried = [
            int(name)
            for name, version in state.versions.rows.items()
            if version.state == "candidate" and int(name) > max(head.newest_tried, head.serving)
        ]
        check_findings: list[CheckFinding] = []
        for candidate in sorted(untried, reverse=True):
            check_findings = check_version(state, config, candidate)
            if all(finding.result.finding != "missing" for finding in check_findings):
                yield from self._begin_if_it_passes(state, config, candidate, check_findings)
                return
        missing = next((finding for finding in check_findings if finding.result.finding == "missing"), None)
        if missing is not None and missing.reason not in head.noticed:
            state.head = replace(head, noticed=(missing.reason,))
            detail = "no untried version has this evaluation, or the serving one lacks it"
            yield self._decide(state, "hold", max(untried), missing.reason, detail)

    def _begin_if_it_passes(
        self, state: DeliveryState, config: DeliveryConfig, version: int, check_findings: list[CheckFinding]
    ) -> Iterator[Outgoing]:
        measures = check_numbers(check_findings)
        if fatal := [
            finding for finding in check_findings if finding.is_worse and finding.check.on_worse == "quarantine"
        ]:
            yield from self._quarantine(state, config, version, fatal[0].reason, measures)
            return
        waits = [finding for finding in check_findings if finding.holds]
        reports = waits or [finding for finding in check_findings if finding.is_worse]
        for report in reports:
            notice = f"{version}:{report.reason}"
            if notice not in state.head.noticed:
                ours = [past_notice for past_notice in state.head.noticed if past_notice.startswith(f"{version}:")]
                state.head = replace(state.head, noticed=(*ours, notice))
                detail = report.check.on_worse if report.is_worse else ""
                yield self._decide(state, "hold", version, report.reason, detail, measures)
        if not waits:
            yield from self._begin(state, config, version, "newest_candidate", measures=measures)

    def _take_in(self, state: DeliveryState, record: Evaluation) -> Iterator[Outgoing]:
        """Keep an evaluation; a canary that it shows to be worse ends at once."""
        config, version = state.config.value.delivery, record.policy_version
        if config is None:
            return
        keep_evaluation(state, config, record)
        if state.head.canary != version:
            return
        check_findings = check_version(state, config, version)
        if fatal := [
            finding for finding in check_findings if finding.is_worse and finding.check.on_worse == "quarantine"
        ]:
            yield from self._quarantine(state, config, version, fatal[0].reason, check_numbers(check_findings))

    def _begin(
        self,
        state: DeliveryState,
        config: DeliveryConfig,
        version: int,
        reason: str,
        detail: str = "",
        measures: Mapping[str, float] | None = None,
    ) -> Iterator[Outgoing]:
        state.forget_evidence()
        shares = ((state.clock.now_ms, config.steps[0]),)
        tried = max(state.head.newest_tried, version)
        salt = state.clock.nonce  # nobody could foresee it, and every replay meets it
        state.head = replace(state.head.without_canary(), canary=version, shares=shares, newest_tried=tried, salt=salt)
        yield self._decide(state, "canary", version, reason, detail, measures)
        yield from self._mark(state, version, "canary", detail or reason)

    def _serve(
        self,
        state: DeliveryState,
        action: DeliveryAction,
        version: int,
        reason: str,
        detail: str = "",
        *,
        since_ms: int = 0,
    ) -> Iterator[Outgoing]:
        """Give a version all traffic; another one's canary ends."""
        config, canary = state.config.value.delivery, state.head.canary
        measures = numbers(state, config) if config is not None and canary == version else {}
        tried = max(state.head.newest_tried, version)
        state.head = replace(state.head.without_canary(), serving=version, newest_tried=tried)
        state.forget_evidence()
        forget_before(state, version)
        yield self._decide(state, action, version, reason, detail, measures, since_ms=since_ms)
        if canary is not None and canary != version:
            yield from self._mark(state, canary, "candidate", f"version {version} serves")
        yield from self._mark(state, version, "serving", detail or reason)

    def _stop(
        self,
        state: DeliveryState,
        config: DeliveryConfig | None,
        canary: int,
        action: DeliveryAction,
        reason: str,
        detail: str = "",
        measures: Mapping[str, float] | None = None,
    ) -> Iterator[Outgoing]:
        """Give all traffic back to the serving version."""
        if measures is None:
            measures = {} if config is None else numbers(state, config)
        cool_until_ms = state.clock.now_ms + (0 if config is None else config.cool_down_ms)
        state.head = replace(state.head.without_canary(), cool_until_ms=cool_until_ms)
        state.forget_evidence()
        yield self._decide(state, action, canary, reason, detail, measures)
        ends: dict[DeliveryAction, PolicyState] = {"quarantine": "quarantined", "reject": "rejected"}
        if action in ends:
            yield from self._mark(state, canary, ends[action], detail or reason)
        elif (version := state.version(canary)) is not None and version.state == "canary":
            yield from self._mark(state, canary, "candidate", detail or reason)

    # What the trainer and operators write

    def _follow_version(self, state: DeliveryState, record: PolicyVersion) -> Iterator[Outgoing]:
        version = state.version(record.version)
        parent = record.parent if record.parent is not None or version is None else version.parent
        state.versions.put(str(record.version), DeliveryVersion(parent, record.state))
        head = state.head
        if record.state == "serving" and head.serving != record.version:
            reason = "operator" if record.reason else "trainer"
            yield from self._serve(
                state, "serve", record.version, reason, record.reason or "", since_ms=record.changed_at_ms
            )
        elif record.state == "rolled_back" and head.canary == record.version:
            yield from self._stop(
                state, state.config.value.delivery, record.version, "stop", "rolled_back", record.reason or ""
            )
        elif record.state == "candidate" and (bad := state.descends_from(record.version, "quarantined")) is not None:
            yield from self._mark(state, record.version, "quarantined", f"descends from {bad}, which is quarantined")

    def _answer(self, state: DeliveryState, record: DeliveryCommand) -> Iterator[Outgoing]:
        """Follow a command; its decision names it."""
        for outgoing in self._obey(state, record):
            if isinstance(outgoing.record, PolicyDecision):
                outgoing = replace(outgoing, record=replace(outgoing.record, command_id=record.command_id))
            yield outgoing

    def _obey(self, state: DeliveryState, record: DeliveryCommand) -> Iterator[Outgoing]:
        head, config, version = state.head, state.config.value.delivery, record.version
        if refusal := _refusal(state, record):
            yield self._decide(state, "refuse", version, refusal, f"{record.command}: {record.reason}")
        elif record.command == "freeze" or record.command == "unfreeze":
            state.head = replace(head, frozen=record.command == "freeze")
            if head.canary is not None and state.head.frozen:
                yield from self._stop(state, config, head.canary, "stop", "frozen", record.reason)
            else:
                yield self._decide(state, "serve", head.serving, record.command, record.reason)
        elif version is None or config is None:
            return
        elif record.command == "promote":
            yield from self._serve(state, "promote", version, "operator", record.reason)
        elif record.command == "canary":
            if head.canary is not None:
                yield from self._mark(state, head.canary, "candidate", f"version {version} is the canary")
            yield from self._begin(state, config, version, "operator", record.reason)
        elif head.canary == version:
            yield from self._stop(state, config, version, "reject", "operator", record.reason)
        else:
            yield self._decide(state, "reject", version, "operator", record.reason)
            yield from self._mark(state, version, "rejected", record.reason)

    # Records

    def _decide(
        self,
        state: DeliveryState,
        action: DeliveryAction,
        version: int | None,
        reason: str,
        detail: str = "",
        measures: Mapping[str, float] | None = None,
        *,
        since_ms: int = 0,
    ) -> Outgoing:
        """Return a decision; before the first tick, such as on a model that has trained before, it is of `since_ms`."""
        head = state.head = replace(state.head, number=state.head.number + 1)
        model = state.config.value.model
        decision = PolicyDecision(
            model=model,
            run_id=self.run_id,
            number=head.number,
            action=action,
            version=version,
            serving=head.serving,
            canary=head.canary,
            share=head.share,
            salt=head.salt,
            frozen=head.frozen,
            reason=reason,
            detail=detail,
            numbers=dict(measures or {}),
            decided_at_ms=state.clock.now_ms or since_ms,
            config_hash=state.config.hash,
        )
        return Outgoing(POLICY_DECISIONS, model, decision)

    def _mark(self, state: DeliveryState, number: int, to: PolicyState, reason: str) -> Iterator[Outgoing]:
        """Tell the trainer and the curriculum a version's new state."""
        version = state.version(number)
        if version is None or version.state == to:
            return
        state.versions.put(str(number), replace(version, state=to))
        record = PolicyVersion(
            model=state.config.value.model,
            version=number,
            parent=version.parent,
            run_id=self.run_id,
            state=to,
            reason=reason,
            changed_at_ms=state.clock.now_ms,
        )
        yield Outgoing(POLICY_VERSIONS, record.model, record)
        yield Outgoing(RUN_LOG, self.run_id, record)


def _refusal(state: DeliveryState, record: DeliveryCommand) -> str:
    """Return why a command cannot be followed; empty if it can."""
    head = state.head
    if record.seen_decision != head.number:
        return "decided_meanwhile"
    if record.command in ("freeze", "unfreeze"):
        return ""
    version = None if record.version is None else state.version(record.version)
    if version is None:
        return "unknown_version"
    if version.state in STOPPED:
        return f"version_{version.state}"
    if record.version == head.serving:
        return "serves_already"
    if record.command in ("canary", "promote") and head.frozen:
        return "frozen"
    return "nothing_serves" if record.command == "canary" and head.serving is None else ""
