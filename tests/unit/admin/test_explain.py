"""Judge groups, writes, disks and restarts by values, and ask clusters that are half dead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.admin.fake_cluster import MASTERS, A, B, FakeCluster, answer, cluster_info

from cometmq.admin.explain import disk, restart, write
from cometmq.admin.explain.groups.group_causes import judge
from cometmq.admin.explain.groups.group_facts import GroupFacts
from cometmq.admin.explain.inquiry import Inquiry, Place, Reported
from cometmq.admin.explain.messages.message_causes import judge as judge_message
from cometmq.admin.explain.messages.message_facts import MessageFacts
from cometmq.admin.explain.records import Cause, Explanation, Reason, RestartCost, Unasked
from cometmq.admin.explain.room import Explanations
from cometmq.admin.explain.selecting import Sample, selected
from cometmq.admin.groups.records import RunningInfo
from cometmq.cli.explain.screen import print_json, print_text
from cometmq.errors import ConnectError, IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.finding import Severity
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.bodies.consumers import ConsumeStatus, ProcessQueueInfo
from cometmq.protocol.bodies.inspection import ClientConnection, ConsumerConnection, OffsetWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.runtime.clock import SYSTEM_CLOCK

NOW_MS = 1_700_000_000_000
QUEUE = MessageQueue("T", "broker-a", 0)
PLACE = Place("broker-a", "c", A)


def reported(value: Any, address: str = A) -> Reported[Any]:
    return Reported(value, "SOMETHING (1)", address, NOW_MS)


def member(
    info: ProcessQueueInfo | None, *, status: ConsumeStatus | None = None, **properties: str
) -> Reported[RunningInfo]:
    started = {"PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS - 3_600_000)}
    queues = {} if info is None else {QUEUE: info}
    value = RunningInfo(
        "m", {**started, **properties}, (), queues, {"T": status or ConsumeStatus()}, None
    )
    return Reported(value, "GET_CONSUMER_RUNNING_INFO (307)", "m", NOW_MS)


def facts(
    *, end: int = 100, consumed: int = 0, pulled: int = 0, **members: Reported[RunningInfo]
) -> GroupFacts:
    """Return a group that has one queue, and is online."""
    found = GroupFacts("g", NOW_MS, {A: PLACE})
    progress = OffsetWrapper(broker_offset=end, consumer_offset=consumed, pull_offset=pulled)
    found.progress[A] = reported({QUEUE: progress})
    found.online[A] = reported(
        ConsumerConnection("CONSUME_FROM_FIRST_OFFSET", "CONSUME_PASSIVELY", "CLUSTERING")
    )
    found.members = dict(members)
    return found


def causes(found: GroupFacts) -> list[Cause]:
    return [reason.cause for reason in judge(found)]


def test_an_offset_behind_the_end_is_told_though_nothing_waits() -> None:
    found = facts(end=5, consumed=9)
    assert causes(found) == [Cause.OFFSET_AFTER_END, Cause.CAUGHT_UP]


def test_an_offset_before_the_beginning_counts_what_is_lost() -> None:
    found = facts(end=100, consumed=10, m=member(ProcessQueueInfo()))
    found.beginnings[QUEUE] = reported(60)
    [first, *_] = judge(found)
    assert first.cause is Cause.OFFSET_BEFORE_BEGINNING
    assert "50 messages" in first.said


def test_a_paused_queue_explains_what_waits_in_it_only() -> None:
    paused = facts(m=member(ProcessQueueInfo(), paused="false", pausedQueues=f"{QUEUE}; T@b:1"))
    [reason] = judge(paused)
    assert reason.cause is Cause.MEMBER_PAUSED
    assert "1 queue of group g is paused by m: T@broker-a:0" in reason.said
    elsewhere = facts(m=member(ProcessQueueInfo(), paused="false", pausedQueues="T@b:1"))
    assert causes(elsewhere) == [Cause.BEHIND]
    # Of a member that is paused as a whole, it says so once.
    whole = facts(m=member(ProcessQueueInfo(), paused="true", pausedQueues=str(QUEUE)))
    assert causes(whole) == [Cause.MEMBER_PAUSED]


def test_throttled_pulls_are_told_apart_from_refused_ones() -> None:
    busy = "T/broker-a/0: the pull was refused by a:1 with code 2 (SYSTEM_BUSY): 100 pulls wait"
    assert Cause.PULLS_THROTTLED in causes(facts(m=member(ProcessQueueInfo(), pullFailures=busy)))
    denied = "T/broker-a/0: the pull was refused by a:1 with code 16 (NO_PERMISSION): not you"
    assert Cause.PULLS_REFUSED in causes(facts(m=member(ProcessQueueInfo(), pullFailures=denied)))


def test_an_orderly_member_that_lost_its_lock_is_told() -> None:
    found = facts(m=member(ProcessQueueInfo(locked=False), PROP_CONSUMEORDERLY="true"))
    assert causes(found) == [Cause.QUEUE_LOCKED]
    assert causes(facts(m=member(ProcessQueueInfo(locked=True), PROP_CONSUMEORDERLY="true"))) == [
        Cause.BEHIND
    ]


def test_a_listener_that_holds_a_small_part_of_the_lag_is_not_called_slow() -> None:
    status = ConsumeStatus(consume_ok_tps=50.0, consume_rt=20.0)
    info = ProcessQueueInfo(cached_msg_count=10, cached_msg_max_offset=9)
    assert causes(facts(end=10_000, m=member(info, status=status))) == [Cause.BEHIND]
    slow = judge(facts(end=15, m=member(info, status=status)))
    assert [reason.cause for reason in slow] == [Cause.SLOW_LISTENER]
    assert "takes 20 ms for each and finishes 50.0 a second" in slow[0].said


@pytest.mark.parametrize(
    ("info", "properties"),
    [
        (ProcessQueueInfo(cached_msg_count=1001), {}),
        (ProcessQueueInfo(cached_msg_count=11), {"pullThresholdForQueue": "10"}),
        (ProcessQueueInfo(cached_msg_count=1, cached_msg_size_in_mi_b=100), {}),
        (ProcessQueueInfo(cached_msg_count=2, cached_msg_max_offset=2001), {}),
    ],
)
def test_each_limit_of_flow_control_is_named(
    info: ProcessQueueInfo, properties: dict[str, str]
) -> None:
    found = causes(facts(end=100_000, m=member(info, status=None, **properties)))
    assert found == [Cause.SLOW_LISTENER, Cause.FLOW_CONTROLLED]


def test_what_a_member_has_consumed_counts_before_it_commits() -> None:
    assert causes(facts(end=100, m=member(ProcessQueueInfo(commit_offset=100)))) == [
        Cause.CAUGHT_UP
    ]
    # The broker was asked first, so its member may be ahead of what it said.
    assert causes(facts(end=100, m=member(ProcessQueueInfo(commit_offset=120)))) == [
        Cause.CAUGHT_UP
    ]


def test_few_messages_passed_over_are_no_cause() -> None:
    found = facts(m=member(ProcessQueueInfo()))
    found.samples[QUEUE] = reported(Sample(32, 20))
    assert causes(found) == [Cause.BEHIND]
    found.samples[QUEUE] = reported(Sample(32, 3))
    assert causes(found) == [Cause.FILTER]


def test_a_sample_counts_what_only_the_broker_knows_as_selected() -> None:
    messages = [
        MessageExt("T", b"", properties={"TAGS": tag, **({"a": "1"} if tag == "a" else {})})
        for tag in ("a", "b", "a")
    ]
    assert selected(build_subscription("T", "a || c"), messages) == Sample(3, 2)
    assert selected(build_subscription("T", "a = 1", "SQL92"), messages) == Sample(3, 2)
    by_class = SubscriptionData("T", "x", class_filter_mode=True)
    assert selected(by_class, messages) == Sample(3, 3)
    unreadable = SubscriptionData("T", "a = = 1", expression_type="SQL92")
    assert selected(unreadable, messages) == Sample(3, 3)


# Brokers


def test_a_java_broker_does_not_tell_what_goes_next_or_what_a_restart_reads() -> None:
    java = reported({"commitLogDiskRatio": "0.5", "commitLogMinOffset": "0"})
    assert disk.judge(PLACE, java, None).cause is Cause.NOT_REPORTED
    reasons = restart.judge(restart.RestartFacts(PLACE, java, {}), [PLACE, Place("b", "c", B)])
    assert [reason.cause for reason in reasons] == [Cause.NOT_REPORTED]
    assert restart.cost(restart.RestartFacts(PLACE, java, {})) == RestartCost(
        "broker-a", None, None, None, None, None, (), 0, None
    )


def test_a_restart_is_estimated_by_the_last_one_if_that_read_enough() -> None:
    info = {
        "restartLogBytes": str(300 << 20),
        "restartLogBytesAfterCrash": str(900 << 20),
        "restartQueues": "0",
    }
    assumed = restart.cost(restart.RestartFacts(PLACE, reported(info), {}))
    assert (assumed.clean_s, assumed.crash_s) == (1.5, 4.5)
    info |= {"recoveredBytes": str(100 << 20), "recoveryMillis": "1000"}
    measured = restart.cost(restart.RestartFacts(PLACE, reported(info), {}))
    assert measured.clean_s == pytest.approx(3.0)
    assert measured.crash_s == pytest.approx(9.0)


def test_a_java_broker_with_a_full_disk_is_told_by_its_ratio() -> None:
    broker = write.BrokerFacts(
        PLACE, reported({"commitLogDiskRatio": "0.93"}), reported({}), None, None
    )
    found = write.judge_each(write.WriteFacts("T", None, (broker,), None))
    assert [reason.cause for reason in found[A]] == [Cause.DISK_FULL]


def test_a_store_that_refuses_for_another_reason_says_it() -> None:
    info = reported({"refusing": "the store is closed", "refused_store_closed": "3"})
    broker = write.BrokerFacts(PLACE, info, None, None, None)
    [reason] = write.judge_each(write.WriteFacts("T", None, (broker,), None))[A]
    assert reason.cause is Cause.STORE_REFUSES
    assert ("refused_store_closed", "3") in [(e.figure, e.value) for e in reason.evidence]


# Clusters that are half dead


def dead_at_b(serve: Any) -> Any:
    def at(address: str, command: RemotingCommand) -> RemotingCommand:
        if address == B:
            raise ConnectError("no connection", address=address)
        reply: RemotingCommand = serve(address, command)
        return reply

    return at


def half_dead(changed: Mapping[int, Any] | None = None) -> FakeCluster:
    refuse = dead_at_b(lambda *_: answer(ResponseCode.SYSTEM_ERROR))
    table = {"offsetTable": {}, "consumeTps": 0.0}
    group = {"subscriptionGroupTable": {"g": {"groupName": "g"}}}
    codes = requests
    return FakeCluster(
        {
            codes.GET_BROKER_CLUSTER_INFO.code: lambda *_: cluster_info(),
            codes.GET_ROUTEINFO_BY_TOPIC.code: lambda *_: answer(ResponseCode.TOPIC_NOT_EXIST),
            codes.GET_CONSUME_STATS.code: dead_at_b(lambda *_: answer(body=table)),
            codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code: dead_at_b(lambda *_: answer(body=group)),
            codes.GET_CONSUMER_CONNECTION_LIST.code: dead_at_b(
                lambda *_: answer(ResponseCode.CONSUMER_NOT_ONLINE)
            ),
            codes.GET_BROKER_CONFIG.code: dead_at_b(lambda *_: answer(body=b"brokerName=broker-a")),
            codes.GET_BROKER_RUNTIME_INFO.code: dead_at_b(
                lambda *_: answer(body={"table": {"nextDeletedFile": ""}})
            ),
            codes.GET_POP_PROGRESS.code: dead_at_b(
                lambda *_: answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            ),
            codes.GET_TOPIC_CONFIG.code: refuse,
            codes.GET_TOPIC_STATS_INFO.code: refuse,
            codes.UPDATE_AND_GET_GROUP_FORBIDDEN.code: refuse,
            codes.VIEW_BROKER_STATS_DATA.code: refuse,
            **(changed or {}),
        }
    )


async def test_what_lives_is_told_and_what_is_dead_is_named() -> None:
    explain = Explanations(half_dead().servers)
    group = await explain.group("g")
    assert group.causes == (Cause.CAUGHT_UP,)
    assert {each.address for each in group.unasked} == {B}
    assert group.severity is Severity.WARNING
    files = await explain.disk()
    assert [reason.cause for reason in files.reasons] == [Cause.BROKER_AWAY, Cause.NO_DELETION]
    assert files.deletions == {A: None, B: None}
    writes = await explain.write("T")
    assert writes.refusals[B] == (Cause.BROKER_AWAY,)
    assert "no connection" in writes.answer
    costs = await explain.restart()
    assert set(costs.costs) == set(MASTERS.values())
    assert Cause.BROKER_AWAY in costs.causes


async def test_questions_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = half_dead()

    async def never() -> None:
        raise AssertionError

    monkeypatch.setattr("cometmq.admin.explain.inquiry.MAX_QUESTIONS", 0)
    inquiry = Inquiry(cluster.servers, SYSTEM_CLOCK, 30.0, None)
    assert await inquiry.ask(requests.GET_BROKER_CONFIG, A, never) is None
    assert "MAX_QUESTIONS=0" in inquiry.unasked[0].error
    for deadline_s in (0, -1, 3601):
        with pytest.raises(IllegalArgumentError, match="deadline_s is"):
            Inquiry(cluster.servers, SYSTEM_CLOCK, deadline_s, None)


async def test_each_step_is_told() -> None:
    steps: list[str] = []
    await Explanations(half_dead().servers).group("g", on_step=steps.append)
    assert steps[:2] == [
        "asking the name servers for the brokers",
        "asking 2 brokers for the group's progress",
    ]


def test_the_screen_groups_evidence_by_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    found = judge(facts(m=member(ProcessQueueInfo(cached_msg_count=80), paused="true")))
    assert isinstance(found[0], Reason)
    explanation = Explanation(
        question="why?",
        reasons=tuple(found),
        unasked=(Unasked("X (1)", B, "no connection"),),
        at_ms=NOW_MS,
    )
    print_text(explanation)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 member of group g paused: m; 100 messages wait (T 100)  [member-paused]"
    assert lines[1].startswith("  GET_CONSUMER_RUNNING_INFO (307) at m, ")
    assert lines[2].split() == ["paused", "true"]
    assert lines[-2:] == ["What could not be asked", f"  X (1) of {B}: no connection"]


def test_the_guide_names_every_cause() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()
    assert [cause.value for cause in Cause if f"{cause.value}" not in guide] == []


def hostile() -> Explanation:
    reason = Reason(
        Cause.CAUGHT_UP, Severity.OK, "m\x1b[2J\n\x9b1m", (reported(1).shows("a\rb", "c\x07"),)
    )
    return Explanation(question="why?", reasons=(reason,), unasked=(), at_ms=NOW_MS)


def test_names_with_control_characters_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_text(hostile())
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert r"m\x1b[2J\n\x9b1m  [caught-up]" in shown
    print_json(hostile())
    written = capsys.readouterr().out
    assert all(line.isprintable() for line in written.splitlines())
    assert json.loads(written)["answer"] == "m\x1b[2J\n\x9b1m"


# What is not told


def test_a_group_whose_members_are_not_told_is_not_called_without_members() -> None:
    found = facts()
    found.online.clear()
    assert causes(found) == [Cause.BEHIND]
    found.offline[A] = reported(None)
    [reason] = judge(found)
    assert reason.cause is Cause.NO_MEMBER
    assert reason.evidence[0].figure == "members online"
    # The members of a broker that has no lag may be away from the one that has.
    found.offline = {B: reported(None, B)}
    assert causes(found) == [Cause.BEHIND]


def test_a_group_whose_progress_is_not_told_is_not_called_caught_up() -> None:
    found = facts()
    found.progress.clear()
    [reason] = judge(found)
    assert (reason.cause, reason.severity) == (Cause.NOT_REPORTED, Severity.WARNING)
    assert causes(GroupFacts("g", NOW_MS, {})) == [Cause.BROKER_AWAY]
    half = facts(end=0)
    half.places = {A: PLACE, B: Place("broker-b", "c", B)}
    [reason] = judge(half)
    assert reason.cause is Cause.CAUGHT_UP
    assert "; broker-b did not" in reason.said


async def test_a_progress_that_a_broker_refuses_is_not_taken_for_none() -> None:
    cluster = half_dead(
        {requests.GET_CONSUME_STATS.code: lambda *_: answer(ResponseCode.SYSTEM_ERROR)}
    )
    found = await Explanations(cluster.servers).group("g")
    assert found.causes == (Cause.NOT_REPORTED,)


async def test_a_cluster_that_does_not_answer_does_not_make_a_group_unknown() -> None:
    def away(address: str, _command: RemotingCommand) -> RemotingCommand:
        raise ConnectError("no connection", address=address)

    asked = (
        requests.GET_CONSUME_STATS,
        requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        requests.GET_CONSUMER_CONNECTION_LIST,
        requests.GET_BROKER_CONFIG,
    )
    cluster = half_dead({row.code: away for row in asked})
    found = await Explanations(cluster.servers).group("g")
    assert found.causes == (Cause.NOT_REPORTED,)
    assert {each.address for each in found.unasked} == {A, B}


async def test_no_more_than_100_members_are_asked() -> None:
    members = ConsumerConnection(
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        [ClientConnection("x:1", f"m{number:04}", "JAVA", 1) for number in range(1000)],
    )
    queue = '{"topic":"T","brokerName":"broker-a","queueId":0}'
    table = b'{"offsetTable":{%b:{"brokerOffset":9,"consumerOffset":1}}}' % queue.encode()
    cluster = half_dead(
        {
            requests.GET_CONSUME_STATS.code: dead_at_b(lambda *_: answer(body=table)),
            requests.GET_CONSUMER_CONNECTION_LIST.code: dead_at_b(lambda *_: answer(body=members)),
            requests.GET_CONSUMER_RUNNING_INFO.code: lambda *_: answer(
                ResponseCode.CONSUMER_NOT_ONLINE
            ),
        }
    )
    found = await Explanations(cluster.servers).group("g")
    assert found.causes == (Cause.NOT_REPORTED, Cause.MEMBER_SILENT)
    assert "900 of 1000 members" in found.answer
    asked = {
        command.ext["clientId"]
        for command in cluster.requests
        if command.code == requests.GET_CONSUMER_RUNNING_INFO.code
    }
    assert len(asked) == 100


def test_figures_without_end_are_passed_over() -> None:
    long = "9" * 5000
    found = facts(m=member(None, PROP_CONSUMER_START_TIMESTAMP=long))
    found.settings[A] = reported({"brokerPermission": long})
    assert causes(found) == [Cause.QUEUE_WITHOUT_OWNER]


def test_a_program_that_pulls_by_itself_may_tell_no_queues() -> None:
    found = facts(m=member(None, PROP_CONSUME_TYPE="CONSUME_ACTIVELY"))
    assert causes(found) == [Cause.BEHIND]


# Messages


def stored(topic: str = "T", at_ms: int = NOW_MS, offset: int = 5, times: int = 0) -> Reported[Any]:
    return reported(
        MessageExt(
            topic,
            b"",
            broker_name="broker-a",
            queue_id=0,
            queue_offset=offset,
            store_timestamp_ms=at_ms,
            reconsume_times=times,
            store_host="1.2.3.4:1",
            commit_log_offset=at_ms,
        )
    )


def followed(group: GroupFacts) -> MessageFacts:
    found = MessageFacts("id", "T", NOW_MS, {A: PLACE})
    found.copies = [stored()]
    found.groups = {"g": group}
    found.known_groups = 1
    return found


def fate(found: MessageFacts) -> Cause:
    [reason], [delivery] = judge_message(found)
    assert delivery.cause is reason.cause
    return reason.cause


def test_a_message_is_judged_by_what_its_broker_tells() -> None:
    assert fate(followed(facts(consumed=6))) is Cause.CONSUMED
    assert fate(followed(facts(consumed=5))) is Cause.NOT_PULLED
    silent = facts()
    silent.progress.clear()
    assert fate(followed(silent)) is Cause.NOT_REPORTED
    everyone = facts()
    everyone.online[A] = reported(
        ConsumerConnection("CONSUME_FROM_FIRST_OFFSET", "CONSUME_PASSIVELY", "BROADCASTING")
    )
    assert fate(followed(everyone)) is Cause.BROADCASTING


def subscribing(
    found: GroupFacts, consume_type: str, *topics: str, model: str = "CLUSTERING"
) -> None:
    found.online[A] = reported(
        ConsumerConnection(
            "CONSUME_FROM_FIRST_OFFSET",
            consume_type,
            model,
            subscription_table={topic: SubscriptionData(topic, "*") for topic in topics},
        )
    )


def test_a_group_that_subscribes_elsewhere_is_told_as_not_subscribed() -> None:
    found = facts(consumed=5, m=member(None))
    subscribing(found, "CONSUME_PASSIVELY", "other", "%RETRY%g")
    assert fate(followed(found)) is Cause.NOT_SUBSCRIBED
    assert causes(found) == [Cause.NOT_SUBSCRIBED]
    # Messages that it consumed before it left the topic stay consumed; a retry has another topic.
    consumed = facts(consumed=6)
    subscribing(consumed, "CONSUME_PASSIVELY", "other")
    assert fate(followed(consumed)) is Cause.CONSUMED
    everyone = facts()
    everyone.progress.clear()
    subscribing(everyone, "CONSUME_PASSIVELY", "other", model="BROADCASTING")
    assert fate(followed(everyone)) is Cause.NOT_SUBSCRIBED


@pytest.mark.parametrize(
    ("consume_type", "topics"),
    [
        ("CONSUME_ACTIVELY", ()),
        ("CONSUME_ACTIVELY", ("%RETRY%g",)),
        ("CONSUME_PASSIVELY", ("T", "other")),
    ],
)
def test_a_program_that_takes_queues_itself_is_not_called_unsubscribed(
    consume_type: str, topics: tuple[str, ...]
) -> None:
    found = facts(consumed=5)
    subscribing(found, consume_type, *topics)
    assert fate(followed(found)) is Cause.NOT_PULLED
    assert causes(found) == [Cause.BEHIND]


def test_a_dead_letter_that_was_sent_again_is_judged_by_its_new_copy() -> None:
    found = followed(facts(consumed=9))
    found.retried["g"] = [stored("%RETRY%g", NOW_MS + 1, times=1)]
    found.dead["g"] = [stored("%DLQ%g", NOW_MS + 2, times=2)]
    assert fate(found) is Cause.DEAD_LETTERED
    found.copies.append(stored(at_ms=NOW_MS + 3, offset=8))
    assert fate(found) is Cause.CONSUMED


def test_a_time_that_no_calendar_has_is_shown_as_it_is() -> None:
    assert disk.local_time(10**17) == f"{10**17} ms since the epoch"


async def test_a_restart_asks_every_broker_for_its_figures_before_groups_use_up_the_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.admin.explain.inquiry.MAX_QUESTIONS", 4)
    groups = {"subscriptionGroupTable": {f"g{n}": {"groupName": f"g{n}"} for n in range(9)}}
    cluster = half_dead(
        {
            requests.GET_BROKER_RUNTIME_INFO.code: lambda *_: answer(
                body={"table": {"restartLogBytes": "0"}}
            ),
            requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.code: lambda *_: answer(body=groups),
        }
    )
    found = await Explanations(cluster.servers).restart()
    assert found.causes == (Cause.RESTART_COST,)
    assert found.unasked
