"""The watch's view of servers' answers, and what needs attention."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.admin.brokers.reports import BrokerProgress
from cometmq.admin.groups.records import GroupProgress, QueueProgress
from cometmq.admin.servers import BrokerAddress
from cometmq.console.watching.concerns import Concern, behind_bytes, concerns_of
from cometmq.console.watching.recent import Known
from cometmq.console.watching.troubles import Newcomers
from cometmq.console.watching.watch import (
    BrokerState,
    GroupLag,
    LagChange,
    Lags,
    LagSample,
    Sample,
    Watch,
    _gone,
)
from cometmq.errors import ConnectError, RemoteError
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.finding import Severity, error, ok, warning
from cometmq.runtime.clock import SYSTEM_CLOCK

MASTER = BrokerAddress("one", "broker-a", 0, "10.0.0.1:10911")
SLAVE = BrokerAddress("one", "broker-a", 1, "10.0.0.2:10911")
MINUTE_MS = 60_000


@pytest.fixture
def watch() -> Watch:
    made = Watch(None, None, None)  # type: ignore[arg-type]  # it does not look in these tests
    made.samples.append(Sample(1, {MASTER.address: (1.0, 2.0)}))
    made.brokers = (BrokerState(MASTER, {"putTps": "1.0 2.0 3.0"}),)
    return made


def said(concerns: list[Concern]) -> list[tuple[Severity, str, str]]:
    return [(each.severity, each.where, each.what % each.values) for each in concerns]


def lags(watch: Watch, *samples: dict[str, int]) -> None:
    """Have the watch seen these lags, a minute apart."""
    watch.lag_samples = deque(
        LagSample(number * MINUTE_MS, sum(each.values()), each)
        for number, each in enumerate(samples)
    )
    groups = {name: GroupLag(name, lag, 0, 0.0, lag) for name, lag in samples[-1].items()}
    watch.lags = Lags((len(samples) - 1) * MINUTE_MS, groups, {})


def test_rates_of_both_spellings_and_of_none() -> None:
    reported = {"putTps": "1.5 2.0 3.0", "getTransferedTps": "4.0 5.0 6.0"}
    old = BrokerState(MASTER, reported)
    assert (old.messages_in, old.messages_out) == (1.5, 4.0)
    new = BrokerState(MASTER, {"putTps": "  ", "getTransferredTps": "4.0"})
    assert (new.messages_in, new.messages_out) == (0.0, 4.0)
    away = BrokerState(MASTER, {}, ConnectError("away"))
    assert (away.messages_in, away.messages_out, away.disk_ratio) == (None, None, None)


def test_a_broker_that_is_away_makes_a_gap_not_a_zero() -> None:
    sample = Sample(1, {"a": (1.0, 2.0), "b": (None, None)})
    assert sample.total() == (1.0, 2.0)
    assert sample.total(["b"]) == (None, None)
    assert sample.total(["unknown"]) == (None, None)


def test_nothing_needs_attention_when_all_is_well(watch: Watch) -> None:
    watch.findings = Known([ok("broker broker-a", "answered")])
    lags(watch, {"g": 5000}, {"g": 4000})
    assert concerns_of(watch) == []


def test_errors_come_before_warnings(watch: Watch) -> None:
    watch.brokers = (BrokerState(MASTER, {}, ConnectError("refused")),)
    watch.findings = Known(
        [
            warning("broker broker-a: clock", "5 s ahead", "run chrony"),
            error("broker broker-a", "told already", "start it"),
            error("broker broker-a: messages", "told already", "free disk"),
            error("name server x:1", "no answer", "start it"),
        ]
    )
    assert said(concerns_of(watch)) == [
        (Severity.ERROR, "broker broker-a", "It does not answer, since –: refused"),
        (Severity.ERROR, "name server x:1", "no answer"),
        (Severity.WARNING, "broker broker-a: clock", "5 s ahead"),
    ]


def test_a_broker_that_refuses_the_question_answers(watch: Watch) -> None:
    """One of another version, or with rights that the console lacks, was shown as away."""
    refusal = RemoteError("request type 28 not supported", code=3)
    watch.brokers = (BrokerState(MASTER, {}, refusal), BrokerState(SLAVE, {}, ConnectError("gone")))
    assert [each.is_silent for each in watch.brokers] == [False, True]
    silent, refusing = concerns_of(watch)
    assert (silent.severity, refusing.severity) == (Severity.ERROR, Severity.WARNING)
    assert silent.what.startswith("It does not answer")
    assert refusing.what.startswith("It answers, but does not report its state")


def test_a_finding_leads_to_the_page_of_its_broker(watch: Watch) -> None:
    watch.findings = Known([warning("broker broker-a: disk", "80% used", "free disk")])
    [concern] = concerns_of(watch)
    assert concern.url == "/broker?address=10.0.0.1%3A10911"
    assert concern.remedy == "free disk"


def test_ten_equal_findings_do_not_push_dead_letters_below_the_fold(watch: Watch) -> None:
    """Each loopback address had a line of its own, above the dead letters and the lag of groups."""
    watch.troubles.letters = {"mailer": Newcomers(3, 1)}
    lags(watch, {"slow": 1000}, {"slow": 1000})
    reached = "127.0.0.1 is reached by this machine only: it is a loopback address"
    watch.findings = Known(
        [warning(f"broker b{number}: address", reached, "set brokerIP1") for number in range(10)]
    )
    found = concerns_of(watch)
    assert [each.where for each in found] == ["mailer", "slow", "broker b0: address"]
    assert found[-1].also == ("broker b1: address", "broker b2: address")
    assert found[-1].more == 7


def test_errors_come_before_what_costs_messages(watch: Watch) -> None:
    watch.troubles.letters = {"mailer": Newcomers(3, 1)}
    watch.troubles.conflicts = {"loyalty": ("payments",)}
    watch.brokers = (BrokerState(MASTER, {}, ConnectError("away")),)
    assert [each.where for each in concerns_of(watch)] == ["broker broker-a", "loyalty", "mailer"]


def test_a_group_that_falls_behind_needs_attention(watch: Watch) -> None:
    lags(watch, {"grows": 1000, "small": 5}, {"grows": 3000, "small": 900})
    assert said(concerns_of(watch)) == [
        (
            Severity.WARNING,
            "grows",
            "3,000 messages wait for this group, 2,000 more than 1 min ago.",
        )
    ]


def test_a_group_that_stands_still_needs_attention(watch: Watch) -> None:
    lags(watch, {"stands": 1000}, {"stands": 1000})
    assert (
        said(concerns_of(watch))[0][2]
        == "1,000 messages wait for this group, as many as 1 min ago."
    )


def test_rocketmqs_own_groups_are_nobodys_work(watch: Watch) -> None:
    lags(watch, {"CID_RMQ_SYS_TRANS": 0, "g": 1}, {"CID_RMQ_SYS_TRANS": 9000, "g": 2})
    assert concerns_of(watch) == []
    assert watch.lags is not None
    assert watch.lags.total == 2
    assert [each.group for each in watch.lags.of_users] == ["g"]


def test_a_group_is_not_judged_by_one_look(watch: Watch) -> None:
    lags(watch, {"new": 1_000_000})
    assert concerns_of(watch) == []


def test_a_group_is_not_judged_within_a_minute(watch: Watch) -> None:
    watch.lag_samples = deque(
        [LagSample(0, 9000, {"g": 9000}), LagSample(59_999, 9000, {"g": 9000})]
    )
    watch.lags = Lags(59_999, {"g": GroupLag("g", 9000, 0, 0.0, 9000)}, {})
    assert concerns_of(watch) == []


def test_growth_counts_from_ten_minutes_ago(watch: Watch) -> None:
    lags(watch, *({"g": 1000 * number} for number in range(21)))
    assert watch.lag_change("g", 10 * MINUTE_MS) == LagChange(10_000, 10 * MINUTE_MS)
    assert watch.lag_change("other", 10 * MINUTE_MS) is None


def test_a_slave_that_lacks_much_of_the_log_needs_attention(watch: Watch) -> None:
    slave = BrokerState(SLAVE, {"commitLogMaxOffset": "1000"})
    end = str(1000 + 100 * 1024 * 1024)
    watch.brokers = (BrokerState(MASTER, {"commitLogMaxOffset": end}), slave)
    assert behind_bytes(watch, slave) == 100 * 1024 * 1024
    assert behind_bytes(watch, watch.brokers[0]) is None
    assert said(concerns_of(watch)) == [
        (Severity.WARNING, "slave 1 of broker-a", "It lacks 100 MiB of its master's log.")
    ]


def test_no_broker_at_all_needs_attention(watch: Watch) -> None:
    watch.brokers = ()
    assert said(concerns_of(watch)) == [(Severity.ERROR, "brokers", "No broker is registered.")]


def test_a_broker_that_is_registered_no_more_is_kept_for_an_hour() -> None:
    seen = [BrokerState(MASTER, {"putTps": "1"}), BrokerState(SLAVE, {})]
    [gone] = _gone(seen, {SLAVE}, 5_000)
    assert (gone.at, gone.info, gone.gone_ms) == (MASTER, {}, 5_000)
    [still] = _gone([gone], {SLAVE}, 5_000 + 59 * MINUTE_MS)
    assert still.gone_ms == 5_000
    assert _gone([still], {SLAVE}, 5_001 + 60 * MINUTE_MS) == []


def test_a_broker_that_comes_back_at_another_port_is_not_gone() -> None:
    moved = BrokerAddress("one", "broker-a", 0, "10.0.0.1:12345")
    assert _gone([BrokerState(MASTER, {})], {moved}, 5_000) == []


OTHER = BrokerAddress("DefaultCluster", "broker-b", 0, "10.0.0.2:10911")
ELSEWHERE = BrokerAddress("elsewhere", "broker-x", 0, "10.0.0.3:10911")


class Brokers:
    """Say how far groups are, by address; who is not in `lags` does not answer."""

    def __init__(self, lags: dict[str, dict[str, int]]) -> None:
        self.lags = lags

    async def progress(self, *, broker: str) -> dict[str, BrokerProgress]:
        if broker not in self.lags:
            raise ConnectError("away")
        groups = [
            GroupProgress(
                group,
                0.0,
                (QueueProgress(MessageQueue("t", broker, 0), lag, 0, 0, None, 0),),
            )
            for group, lag in self.lags[broker].items()
        ]
        return {broker: BrokerProgress((*groups, GroupProgress("idle", 0.0, ())))}


async def test_a_broker_that_is_away_made_the_total_smaller() -> None:
    reported = Brokers(
        {
            MASTER.address: {"g": 30, "only-a": 5},
            OTHER.address: {"g": 30, "only-b": 7},
            ELSEWHERE.address: {"x": 9},
        }
    )
    admin: Any = SimpleNamespace(brokers=reported)
    watch = Watch(admin, SYSTEM_CLOCK, None)  # type: ignore[arg-type]  # it starts no task
    watch.samples.append(Sample(1, {}))
    watch.brokers = tuple(BrokerState(at, {}) for at in (MASTER, OTHER, ELSEWHERE))

    def seen() -> dict[str, int | None]:
        assert watch.lags is not None
        return {each.group: each.lag for each in watch.lags.of_users}

    await watch.look_at_groups()
    assert watch.lags is not None
    # A group that has committed nothing yet is not behind, but nobody knows that it is not.
    everything = {"g": 60, "only-a": 5, "only-b": 7, "x": 9, "idle": None}
    assert (seen(), watch.lags.total) == (everything, 81)
    del reported.lags[OTHER.address]
    for gone_ms in (0, 1):
        error = ConnectError("lost")
        watch.brokers = (
            BrokerState(MASTER, {}),
            BrokerState(OTHER, {}, error, gone_ms),
            BrokerState(ELSEWHERE, {}),
        )
        await watch.look_at_groups()
        assert seen() == everything | {"g": None, "only-b": None}
        assert (watch.lags.total, watch.lags.groups["g"].least) == (None, 30)
        assert watch.lag_trend()[1][-1] is None
    # Its slave tells in its place.
    slave = BrokerAddress("DefaultCluster", "broker-b", 1, "10.0.0.4:10911")
    reported.lags[slave.address] = {"g": 31, "only-b": 7}
    watch.brokers = (*watch.brokers, BrokerState(slave, {}))
    await watch.look_at_groups()
    assert (seen(), watch.lags.total) == (everything | {"g": 61}, 82)
