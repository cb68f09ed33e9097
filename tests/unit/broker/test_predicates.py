"""Filter predicates on a clock of the test: how long a function takes, and how long it rests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from tests.unit.store.store_box import CLIENT, HOST, ManualClock

from cometmq.broker.config import BrokerConfig
from cometmq.broker.filters.message_filter import MessageFilter
from cometmq.broker.filters.predicates import FilterPredicates
from cometmq.broker.refusal import Refused
from cometmq.model.message import MessageExt
from cometmq.model.subscription import SubscriptionData
from cometmq.model.work import WorkBudget
from cometmq.protocol.record import encode_record

LIMIT_MS = 50
SUBSCRIPTION = SubscriptionData("orders", "paid")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def taking(
    clock: ManualClock, ms: int, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], MessageFilter]:
    """Return what gives the filter of a predicate that takes `ms` of the clock's time."""

    def paid(_message: MessageExt) -> bool:
        clock.value += ms
        return True

    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(is_paid=paid))
    config = BrokerConfig(
        filter_predicate_modules="paid=shop:is_paid", filter_predicate_time_limit=LIMIT_MS
    )
    known = FilterPredicates(config, clock)
    return lambda: known.message_filter(SUBSCRIPTION)


def record() -> memoryview:
    return memoryview(
        encode_record(
            topic=b"orders",
            body=b"x",
            properties=b"",
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            sys_flag=0,
            born_timestamp=0,
            born_host=CLIENT,
            store_timestamp=0,
            store_host=HOST,
        )
    )


def test_a_budget_pays_for_the_time_that_a_predicate_takes(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = WorkBudget(100_000_000)
    matches = taking(clock, 20, monkeypatch)().record_matcher(budget)
    assert matches is not None
    for _ in range(5):
        assert matches(record())
    assert budget.left == pytest.approx(0, abs=5_000)  # a float has the seconds since 1970
    budget.left = 0
    assert matches(record()) is None


def test_a_predicate_that_is_too_slow_rests_for_a_minute(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_filter = taking(clock, LIMIT_MS + 1, monkeypatch)
    matches = message_filter().record_matcher(WorkBudget(10**9))
    assert matches is not None
    for _ in range(3):
        message_filter()
        assert matches(record())
    with pytest.raises(Refused, match="rests"):
        message_filter()
    clock.value += 59_000
    with pytest.raises(Refused, match="rests"):
        message_filter()
    clock.value += 1_000
    message_filter()
