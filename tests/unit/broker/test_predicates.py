"""Functions of the operator that select messages: how they are named, called, timed and rested."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.broker_box import Client
from tests.unit.store.store_box import CLIENT, HOST

from cometmq.broker.config import BrokerConfig
from cometmq.broker.filters.predicates import MAX_PREDICATE_BODY_BYTES, FilterPredicates, by_class
from cometmq.broker.refusal import Refused
from cometmq.errors import ConfigError
from cometmq.model.measures.work import WorkBudget
from cometmq.model.message import MessageExt
from cometmq.model.subscription import EXPRESSION_CLASS, EXPRESSION_SQL92, SubscriptionData
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.compression import CompressionType, compress
from cometmq.protocol.messages.record import encode_record
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

MODULE = "functions_of_the_operator"
REGISTER_FILTER_SERVER, REGISTER_FILTER_CLASS = 301, 302
LIMIT_MS = 50


class Watch:
    """The clock that predicates are timed by; it goes on as the functions say."""

    now_s = 1_000.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class Functions:
    """The contents of the operator's module."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.seen: list[MessageExt] = []
        self.answer: object = True
        self.takes_s = 0.0
        self.error: Exception | None = None

    def select(self, message: MessageExt) -> object:
        self.seen.append(message)
        self.watch.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Functions:
    functions = Functions(Watch())
    made: Any = types.ModuleType(MODULE)
    made.select = functions.select
    made.large = lambda message: len(message.body) > 100
    made.number = 7

    async def waits(_: MessageExt) -> bool:
        return True

    made.waits = waits
    monkeypatch.setitem(sys.modules, MODULE, made)
    return functions


def configured(entries: str, clock: Clock = SYSTEM_CLOCK) -> FilterPredicates:
    config = BrokerConfig(
        broker_name="b",
        broker_ip1="127.0.0.1",
        filter_predicate_modules=entries,
        filter_predicate_time_limit=LIMIT_MS,
    )
    return FilterPredicates(config, clock)


@pytest.fixture
def predicates(functions: Functions) -> FilterPredicates:
    return configured(f"paid={MODULE}:select", functions.watch)


def subscription(name: str = "paid") -> SubscriptionData:
    return SubscriptionData("orders", name, expression_type=EXPRESSION_CLASS)


def record(body: bytes = b"body", sys_flag: int = 0) -> memoryview:
    return memoryview(
        encode_record(
            topic=b"orders",
            body=body,
            properties=b"TAGS\x01paid\x02",
            queue_id=1,
            queue_offset=2,
            physical_offset=3,
            sys_flag=sys_flag,
            born_timestamp=4,
            born_host=CLIENT,
            store_timestamp=5,
            store_host=HOST,
        )
    )


def matches(predicates: FilterPredicates, data: memoryview | None = None) -> bool:
    """Whether a pull with the predicate gets a record."""
    match = predicates.message_filter(subscription()).record_matcher(WorkBudget(10**12))
    assert match is not None
    found = match(record() if data is None else data)
    assert found is not None, "the budget is spent"
    return found


# How they are named


def test_a_function_has_the_name_of_its_entry_or_its_own(functions: Functions) -> None:
    predicates = configured(
        f" paid = {MODULE}:select , {MODULE}:large,,com.shop.Vip={MODULE}:large"
    )
    assert predicates
    assert [predicates.find(name).name for name in ("paid", "large", "com.shop.Vip")] == [
        "paid",
        "large",
        "com.shop.Vip",
    ]
    with pytest.raises(Refused, match=r"'select' \(known: com.shop.Vip, large, paid\)") as refused:
        predicates.find("select")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert functions.seen == []


def test_without_any_a_subscription_by_name_is_refused() -> None:
    predicates = configured("")
    assert not predicates
    with pytest.raises(Refused, match="known: none"):
        predicates.message_filter(subscription())


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("select", "must be name=package.module:function"),
        (f"=paid={MODULE}", "must be name=package.module:function"),
        (f"={MODULE}:select", "must be name=package.module:function"),
        (f"{MODULE}:", "must be name=package.module:function"),
        (":select", "must be name=package.module:function"),
        ("no_such_module_anywhere:f", "cannot be loaded: ModuleNotFoundError"),
        (f"{MODULE}:missing", "cannot be loaded: AttributeError"),
        (f"{MODULE}:number", "is no plain function"),
        (f"{MODULE}:waits", "is no plain function"),
        (f"{MODULE}:select,select={MODULE}:large", "names select twice"),
    ],
)
def test_an_entry_that_names_no_function_stops_the_start(
    functions: Functions, entry: str, reason: str
) -> None:
    assert functions
    with pytest.raises(ConfigError, match=reason):
        configured(entry)


def test_which_subscriptions_name_a_predicate() -> None:
    assert by_class(subscription())
    assert by_class(SubscriptionData("orders", "com.shop.Vip", class_filter_mode=True))
    assert not by_class(SubscriptionData("orders", "paid"))
    assert not by_class(SubscriptionData("orders", "a > 5", expression_type=EXPRESSION_SQL92))


# How they select


@pytest.mark.parametrize(
    ("answer", "wanted"), [(True, True), (False, False), (1, True), (None, False)]
)
def test_a_message_is_wanted_if_the_function_says_so(
    functions: Functions, predicates: FilterPredicates, answer: object, wanted: bool
) -> None:
    functions.answer = answer
    assert matches(predicates) is wanted
    (seen,) = functions.seen
    assert (seen.topic, seen.body, seen.tags, seen.queue_id) == ("orders", b"body", "paid", 1)
    assert (seen.queue_offset, seen.commit_log_offset, seen.broker_name) == (2, 3, "b")
    assert predicates.counts() == {
        "filterPredicate_paid_calls": "1",
        "filterPredicate_paid_selected": str(int(wanted)),
        "filterPredicate_paid_errors": "0",
        "filterPredicate_paid_overruns": "0",
    }


@pytest.mark.parametrize("kind", CompressionType)
def test_a_compressed_body_comes_as_it_was_sent(
    functions: Functions, predicates: FilterPredicates, kind: CompressionType
) -> None:
    body = b"order 1 " * 1_000
    packed = compress(body, kind)
    assert matches(predicates, record(packed, kind.sys_flag))
    (seen,) = functions.seen
    assert seen.body == body
    assert seen.sys_flag & COMPRESSED == 0


def test_a_message_is_delivered_if_the_function_fails(
    functions: Functions, predicates: FilterPredicates
) -> None:
    functions.error = ValueError("no idea")
    with capture_logs() as logs:
        assert all(matches(predicates) for _ in range(5))
        functions.watch.now_s += 61
        assert matches(predicates)
    # A line a minute, not one for each message.
    assert [(line["event"], line["errors"]) for line in logs] == [
        ("a filter predicate failed, its message is delivered", 1),
        ("a filter predicate failed, its message is delivered", 6),
    ]
    assert predicates.counts()["filterPredicate_paid_errors"] == "6"
    assert predicates.counts()["filterPredicate_paid_selected"] == "6"


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"not zlib at all", COMPRESSED),
        (
            compress(bytes(MAX_PREDICATE_BODY_BYTES + 1), CompressionType.ZSTD),
            CompressionType.ZSTD.sys_flag,
        ),
    ],
    ids=["damaged", "too large"],
)
def test_a_message_whose_body_does_not_unpack_is_delivered_unseen(
    functions: Functions, predicates: FilterPredicates, body: bytes, sys_flag: int
) -> None:
    functions.answer = False
    assert matches(predicates, record(body, sys_flag)) is True
    assert functions.seen == []
    assert predicates.counts()["filterPredicate_paid_errors"] == "1"


# How they rest


@pytest.fixture
def slow(functions: Functions) -> Callable[[bool], None]:
    def make(slow: bool) -> None:
        functions.takes_s = (LIMIT_MS + 1) / 1000 if slow else LIMIT_MS / 1000

    return make


def test_three_slow_messages_on_end_make_it_rest_for_a_minute(
    functions: Functions, predicates: FilterPredicates, slow: Callable[[bool], None]
) -> None:
    slow(True)
    with capture_logs() as logs:
        for _ in range(3):
            assert matches(predicates), "what it took long for is selected all the same"
        with pytest.raises(
            Refused, match=r"paid is suspended: .*filterPredicateTimeLimit \(50 ms\)"
        ) as no:
            predicates.message_filter(subscription())
    assert no.value.code == ResponseCode.SYSTEM_ERROR
    assert len(functions.seen) == 3
    assert [(line["event"], line["taken_ms"]) for line in logs] == [
        ("a filter predicate is too slow and is suspended", 51)
    ]
    functions.watch.now_s += 59
    with pytest.raises(Refused, match="is suspended"):
        predicates.message_filter(subscription())
    functions.watch.now_s += 1.1
    slow(False)
    assert matches(predicates)
    assert predicates.counts()["filterPredicate_paid_overruns"] == "3"


def test_slow_messages_with_a_quick_one_between_them_rest_nobody(
    functions: Functions, predicates: FilterPredicates, slow: Callable[[bool], None]
) -> None:
    for _ in range(5):
        for is_slow in (True, True, False):
            slow(is_slow)
            assert matches(predicates)
    assert predicates.counts()["filterPredicate_paid_overruns"] == "10"
    assert len(functions.seen) == 15


def test_after_its_rest_it_has_three_messages_again(
    functions: Functions, predicates: FilterPredicates, slow: Callable[[bool], None]
) -> None:
    slow(True)
    for _ in range(3):
        matches(predicates)
    functions.watch.now_s += 61
    for _ in range(3):
        assert matches(predicates)
    with pytest.raises(Refused, match="is suspended"):
        predicates.message_filter(subscription())


def test_one_that_rests_holds_up_no_other(
    functions: Functions, slow: Callable[[bool], None]
) -> None:
    predicates = configured(f"paid={MODULE}:select,{MODULE}:large", functions.watch)
    slow(True)
    for _ in range(3):
        matches(predicates)
    with pytest.raises(Refused, match="is suspended"):
        predicates.message_filter(subscription("paid"))
    assert predicates.message_filter(subscription("large"))
    assert functions.seen


def test_a_budget_pays_for_the_time_that_a_function_takes(
    functions: Functions, predicates: FilterPredicates
) -> None:
    budget = WorkBudget(100_000_000)
    functions.takes_s = 0.02
    matches = predicates.message_filter(subscription()).record_matcher(budget)
    assert matches is not None
    for _ in range(5):
        assert matches(record())
    assert budget.left == pytest.approx(0, abs=5_000)
    budget.left = 0
    assert matches(record()) is None


# What clients may not upload


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (REGISTER_FILTER_CLASS, "a broker runs no source that clients upload"),
        (REGISTER_FILTER_SERVER, "filter servers are not served"),
    ],
)
async def test_code_of_others_is_never_taken(operator: Client, code: int, said: str) -> None:
    answer = await operator.ask(code, {}, b"public class Vip {}")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark is not None
    assert said in answer.remark
    assert "filterPredicateModules" in answer.remark, "it says what is there instead"
