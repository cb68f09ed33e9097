"""Select messages by functions that subscriptions name: what is left of the class-filter mode.

Old Java brokers had filter servers, which compiled classes that consumers uploaded. Here the
operator names functions of modules that lie on the broker's own path:

    filterPredicateModules=paid=shop.filters:is_paid,com.shop.Vip=shop.filters:is_vip

A consumer subscribes to a topic with one of the names (`paid`); a Java consumer uses the class
filter of that name (`com.shop.Vip`). The broker refuses source that a client uploads. A function
gets a MessageExt and returns whether the message is wanted.

The functions run on the broker's loop, so they must be quick and must not wait for anything. If a
function raises, the message is delivered: a listener can refuse a message too many, but nobody can
get back a message too few. A function that takes longer than `filterPredicateTimeLimit` ms for
several messages on end rests for a while, and its pulls are refused meanwhile. A function that
never returns cannot be stopped.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.filters.message_filter import MessageFilter, timed
from cometmq.broker.refusal import Refused
from cometmq.errors import CometMQError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.model.message import MessageExt
from cometmq.model.subscription import EXPRESSION_CLASS, SubscriptionData
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request
from cometmq.protocol.header import NoHeader
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.record import decode_record
from cometmq.protocol.refused_requests import NOT_PERMITTED
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock

log = get_logger(__name__)

Predicate = Callable[[MessageExt], object]

# A predicate gets bodies uncompressed. A message with a larger body is delivered without asking.
MAX_PREDICATE_BODY_BYTES: Final = 16 * 1024 * 1024
# A predicate rests after this many messages on end that took too long. A single one may have been
# slow because of the garbage collector.
_OVERRUNS_TO_REST: Final = 3
_REST_S: Final = 60.0
_LOG_PERIOD_S: Final = 60.0


class FilterPredicate:
    """Runs one named function and counts what it did. For the loop's thread only.

    `calls`, `selected`, `errors` and `overruns` count messages.
    """

    def __init__(
        self,
        name: str,
        function: Predicate,
        limit_ms: int,
        broker_name: str,
        clock: Clock,
        on_limit: Callable[[str], None] = lambda _limit: None,
    ) -> None:
        self._on_limit = on_limit
        self.name = name
        self.calls = 0
        self.selected = 0
        self.errors = 0
        self.overruns = 0
        self._function = function
        self._limit_s = limit_ms / 1000
        self._broker_name = broker_name
        self._clock = clock
        self._overruns_on_end = 0
        self._rests_until = 0.0
        self._line = RareLine(_LOG_PERIOD_S)

    def selects(self, record: memoryview) -> bool:
        """Say whether the message of a record is wanted. Raises nothing."""
        self.calls += 1
        begun_at = self._clock.monotonic()
        try:
            wanted = bool(self._function(self._message(record)))
        except Exception as error:  # noqa: BLE001 - the operator's code must not end the broker
            wanted = True
            self.errors += 1
            if isinstance(error, CometMQError) and error.limit:
                self._on_limit(error.limit)
            self._log_error(error, begun_at)
        taken_s = self._clock.monotonic() - begun_at
        if taken_s <= self._limit_s:
            self._overruns_on_end = 0
        else:
            self._overran(taken_s)
        if wanted:
            self.selected += 1
        return wanted

    def check_rested(self) -> None:
        """Refuse the pull while the function rests."""
        if self._rests_until <= self._clock.monotonic():
            return
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the filter predicate {self.name} is suspended: it took longer than filterPredicateTimeLimit "
            f"({self._limit_s * 1000:.0f} ms) for {_OVERRUNS_TO_REST} messages in a row; make it "
            "quicker or raise the limit",
        )

    def _message(self, record: memoryview) -> MessageExt:
        message = decode_record(record).to_message(self._broker_name)
        if message.sys_flag & COMPRESSED:
            message.body = decompress(
                message.body,
                message.sys_flag,
                max_length=MAX_PREDICATE_BODY_BYTES,
                limit="MAX_PREDICATE_BODY_BYTES",
            )
            message.sys_flag &= ~COMPRESSED
        return message

    def _overran(self, taken_s: float) -> None:
        self.overruns += 1
        self._overruns_on_end += 1
        if self._overruns_on_end < _OVERRUNS_TO_REST:
            return
        self._overruns_on_end = 0
        self._rests_until = self._clock.monotonic() + _REST_S
        log.error(
            "a filter predicate is too slow and is suspended",
            predicate=self.name,
            taken_ms=round(taken_s * 1000),
            limit_ms=round(self._limit_s * 1000),
            rest_s=_REST_S,
        )

    def _log_error(self, error: Exception, now: float) -> None:
        if self._line.count(now):
            log.error(
                "a filter predicate failed, its message is delivered",
                predicate=self.name,
                errors=self.errors,
                exc_info=error,
            )


class FilterPredicates:
    """Holds the predicates that the configuration names, and imports them when it is made.

    `on_limit` is called with the name of each limit that a message exceeds. Raises ConfigError for an
    entry that has the wrong form, names no function, or repeats a name.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        on_limit: Callable[[str], None] = lambda _limit: None,
    ) -> None:
        self._clock = clock
        self._by_name: dict[str, FilterPredicate] = {}
        for entry in config.filter_predicate_modules.split(","):
            if entry.strip():
                name, function = _imported(entry.strip())
                if name in self._by_name:
                    raise ConfigError(f"filterPredicateModules names {name} twice")
                self._by_name[name] = FilterPredicate(
                    name,
                    function,
                    config.filter_predicate_time_limit,
                    config.broker_name,
                    clock,
                    on_limit,
                )

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def find(self, name: str) -> FilterPredicate:
        """Return the predicate of this name. Raises Refused if there is none."""
        predicate = self._by_name.get(name)
        if predicate is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"no filter predicate is named {name!r} (known: {known}); have it named in "
                "filterPredicateModules of the broker's configuration, name=package.module:function",
            )
        return predicate

    def counts(self) -> dict[str, str]:
        """Return what each predicate did, for the broker's run-time information."""
        return {
            f"filterPredicate_{predicate.name}_{what}": str(getattr(predicate, what))
            for predicate in self._by_name.values()
            for what in ("calls", "selected", "errors", "overruns")
        }

    def message_filter(self, subscription: SubscriptionData) -> MessageFilter:
        """Return the filter for a pull with that subscription. Raises Refused."""
        predicate = self.find(subscription.sub_string)
        predicate.check_rested()
        return MessageFilter(matches_whole=partial(timed, predicate.selects, self._clock))

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.REGISTER_MESSAGE_FILTER_CLASS, self.refuse)
        handlers.register(requests.REGISTER_FILTER_SERVER, self.refuse)

    def refuse(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Refuse code 302, which brings a class for the broker to compile and run, and code 301 of
        a filter server, which would pull everything and pass on a part.
        """
        raise Refused(ResponseCode.NO_PERMISSION, NOT_PERMITTED[call.code])


def by_class(subscription: SubscriptionData) -> bool:
    """Say whether the subscription names a predicate, in the way of our consumers or of Java's."""
    return subscription.class_filter_mode or subscription.expression_type == EXPRESSION_CLASS


def _imported(entry: str) -> tuple[str, Predicate]:
    given_name, separator, target = entry.rpartition("=")
    module_name, colon, attribute = target.strip().partition(":")
    name = given_name.strip() if separator else attribute
    if not (colon and module_name and attribute and name):
        raise ConfigError(
            f"filterPredicateModules has the entry {entry!r}; it must be name=package.module:function "
            "or package.module:function"
        )
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise ConfigError(
            f"filterPredicateModules: {entry} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"filterPredicateModules: {entry} is no plain function; it must take a message and "
            "return whether it is wanted"
        )
    return name, function
