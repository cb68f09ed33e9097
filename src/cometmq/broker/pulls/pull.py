"""Hand messages out to consumers: codes 11 and 361.

Java: PullMessageProcessor, DefaultPullMessageResultHandler.

Longer than 500 lines: every pull goes through all of it, and each call that is saved for a pull is
worth the length.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cometmq.broker.filters.consumer_filters import (
    ConsumerFilterData,
    compile_expression,
)
from cometmq.broker.filters.message_filter import (
    EVERYTHING,
    MessageFilter,
    MeteredExtMatcher,
    MeteredMatcher,
    retry_filter,
    sql_filter,
)
from cometmq.broker.filters.predicates import by_class
from cometmq.broker.filters.property_filters import check_property_filter
from cometmq.broker.filters.work import WORK_PER_PULL
from cometmq.broker.parts import Parts
from cometmq.broker.pulls.waiter import Reason, State, Waiter
from cometmq.broker.refusal import Refused
from cometmq.broker.traffic import Traffic
from cometmq.errors import IllegalArgumentError
from cometmq.filtering.sql92 import (
    QUICK_LENGTH,
    TERM_BYTES,
    SqlCondition,
    compile_steps,
    outcomes,
)
from cometmq.filtering.sql92_terms import Condition
from cometmq.filtering.tags import TagMatcher, build_subscription, is_tag_type, tag_matcher
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import is_retry_topic
from cometmq.model.route import MASTER_ID
from cometmq.model.subscription import EXPRESSION_SQL92, SUB_ALL, SubscriptionData
from cometmq.model.sysflag import (
    PERM_READ,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, encode_answer, response
from cometmq.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.slices import run_slices
from cometmq.store.get import MAX_PULL_BYTES, GetResult, GetStatus

PullRequest = Request[PullMessageRequestHeader]

# The response code of each store status. PULL_OFFSET_MOVED only if the client asked for more than
# the beginning, because an empty queue is no error (Java: DefaultPullMessageResultHandler).
_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# Tag expressions of a pull that select every message.
_ALL: Final = (SUB_ALL, "", None)
# Cost of one unit of a consume queue that a filter looked at, in units of WorkBudget.
_UNIT_COST: Final = 100
# A Java consumer whose queues change sends pulls with a new version of its subscription beside the
# heartbeat that announces it. A pull that comes first waits for the heartbeat, so long at most: if it
# were refused, the consumer would leave that queue alone for three seconds
# (DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException). Tests set another time.
HEARTBEAT_WAIT_S: float = 1.0
# The codes with which such a pull would be refused.
_AHEAD: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.FILTER_DATA_NOT_LATEST}
)
# How often a pull waits for the disk: for its part of the queue, for its messages, and once more
# where memory is so short that the pages are gone again.
_MOST_READS: Final = 3


class ForbiddenType(IntEnum):
    """Says why a pull is answered with NO_PERMISSION (Java: ForbiddenType)."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5


@dataclass(slots=True)
class _Scan:
    """Holds the selection of one pull, the tests that are under way for it, the messages found so
    far if it goes on, and the work that it may still do, in units of WorkBudget.
    """

    wanted: MessageFilter
    matches_ext: MeteredExtMatcher | None
    matches_record: MeteredMatcher | None
    begun: GetResult | None = None
    left: int = WORK_PER_PULL


class WaitingPull(Waiter):
    """A pull that waits. Once it has waited for messages, it is answered even if there are none."""

    __slots__ = ("is_last_try", "scan")

    def __init__(
        self,
        connection: Connection,
        request: PullRequest,
        resume: Callable[[WaitingPull, Reason], None],
    ) -> None:
        super().__init__(connection, request, resume)
        self.is_last_try = False
        self.scan: _Scan | None = None


class PullHandler:
    """Serves the pulls of one broker. For the loop's thread only."""

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._config = parts.config
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._clients = parts.clients
        self._offsets = parts.offsets
        self._waiting = parts.waiting
        # Made once, not for each pull that waits.
        self._on_due = self._resume
        self._filters = parts.filters.manager
        self._predicates = parts.predicates
        self._traffic = traffic
        self._work = parts.filter_work
        # A slave may lack messages that its master has, so it does not say that there are none.
        replication = parts.replication
        self._corrects = not replication.is_slave or replication.offset_check_in_slave
        self._handlers = parts.handlers

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.PULL_MESSAGE, self.pull)
        handlers.register(requests.LITE_PULL_MESSAGE, self.pull)

    def pull(self, connection: Connection, request: PullRequest) -> RemotingCommand | None:
        """Answer with messages, or let the pull wait for some."""
        if self._compiles_long(request.header):
            connection.reply_when(request, self._compile_first(connection, request, None))
            return None
        try:
            return self._serve(connection, request, None)
        except Refused as refused:
            if request.header.sys_flag & PULL_SUSPEND and self._is_ahead(refused, request.header):
                pull = WaitingPull(connection, request, self._on_due)
                pull.deadline = asyncio.get_running_loop().time() + HEARTBEAT_WAIT_S
                if self._waits_for_heartbeat(pull):
                    return None
            raise

    def _resume(self, pull: WaitingPull, reason: Reason) -> None:
        """Serve a pull that has waited. It may wait again."""
        connection, request = pull.connection, pull.request
        try:
            if pull.waits_for is State.MESSAGES:
                # It has waited as long as its client liked: does it still have the right?
                if self._handlers.checks_resources:
                    row = self._handlers.request_types[request.code]
                    self._handlers.check_again(row, connection, request)
                if self._compiles_long(request.header):
                    connection.reply_when(request, self._compile_first(connection, request, pull))
                    return
            elif reason is Reason.READ:
                if pull.error is not None:
                    raise pull.error
                pull.reads += 1
            answer = self._serve(connection, request, pull)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request, as in a connection
            # The topic or the group may have been removed while the pull waited.
            if (
                reason is Reason.HEARD
                and isinstance(error, Refused)
                and self._is_ahead(error, request.header)
                and self._waits_for_heartbeat(pull)
            ):
                return
            connection.reply_failure(request, error)
            return
        if answer is not None:
            connection.reply(request, answer)

    def _waits_for_heartbeat(self, pull: WaitingPull) -> bool:
        pull.group = pull.request.header.consumer_group
        pull.size = _bytes_beside(pull.request.header, None)
        return self._waiting.wait(pull, State.HEARTBEAT)

    def _is_ahead(self, refused: Refused, header: PullMessageRequestHeader) -> bool:
        """Say whether the pull may be served soon: a heartbeat is under way, or its expression is being
        compiled.
        """
        if refused.code == ResponseCode.FILTER_DATA_NOT_EXIST:
            return not self._filters.fault(header.topic, header.consumer_group)
        return refused.code in _AHEAD

    def _compiles_long(self, header: PullMessageRequestHeader) -> bool:
        """Say whether the pull brings an expression that takes too long to be compiled at once."""
        expression = header.subscription
        return (
            expression is not None
            and header.sys_flag & PULL_SUBSCRIPTION != 0
            and len(expression) > QUICK_LENGTH
            and header.expression_type == EXPRESSION_SQL92
            and self._config.enable_property_filter
            and expression not in outcomes
        )

    async def _compile_first(
        self, connection: Connection, request: PullRequest, pull: WaitingPull | None
    ) -> RemotingCommand | None:
        """Serve a pull when its expression is compiled, in steps; others are served in between."""
        await run_slices(compile_steps(request.header.subscription or ""))
        return self._serve(connection, request, pull)

    def _serve(
        self, connection: Connection, request: PullRequest, pull: WaitingPull | None
    ) -> RemotingCommand | None:
        """Serve a pull; return None if it is answered already or waits.

        `pull` is given for one that has waited: it goes on with its scan, if it has begun one.
        """
        header = request.header
        group, topic = self._check(request.code, header)
        scan = None if pull is None else pull.scan
        is_first_try = pull is None or (scan is None and not pull.is_last_try)
        if scan is None:
            wanted = self._filter(header, group)
            if wanted is not EVERYTHING and self._work.left <= 0:
                self._wait(connection, request, pull, State.FILTERS)
                return None
            scan = _Scan(wanted, wanted.ext_matcher(self._work), wanted.record_matcher(self._work))
        if self._offsets.resets:
            moved = self._moved(connection, header, group, topic)
            if moved is not None:
                return moved
        began_s = self._traffic.monotonic()
        result = self._scan(header, scan, may_block=pull is not None and pull.reads >= _MOST_READS)
        if is_first_try and header.sys_flag & PULL_COMMIT_OFFSET:
            self._offsets.commit_of_pull(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
                result.max_offset,
            )
        if result.status is GetStatus.NOT_IN_MEMORY:
            assert result.absent is not None
            self._wait(connection, request, pull, State.DISK, scan, result.absent)
            return None
        # A client cannot go on with less than one message.
        if result.is_cut and (scan.left > 0 or result.next_begin_offset == header.queue_offset):
            self._wait(connection, request, pull, State.FILTERS, scan)
            return None
        if result.status is GetStatus.FOUND:
            self._traffic.took(
                header.consumer_group,
                header.topic,
                header.queue_id,
                result.next_begin_offset,
                result.message_count,
                result.byte_count,
                began_s,
            )
            self._send_found(connection, request, result, group, topic)
            return None
        self._traffic.missed()
        return self._found_nothing(connection, request, pull, scan.wanted, result, group, topic)

    def _found_nothing(
        self,
        connection: Connection,
        request: PullRequest,
        pull: WaitingPull | None,
        wanted: MessageFilter,
        result: GetResult,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> RemotingCommand | None:
        """Let the pull wait for messages, once; else return the answer that there are none."""
        header = request.header
        code = _code_of(result, header.queue_offset)
        is_beyond = code == ResponseCode.PULL_OFFSET_MOVED and not self._corrects
        if (
            (pull is None or not pull.is_last_try)
            and (code == ResponseCode.PULL_NOT_FOUND or is_beyond)
            and header.sys_flag & PULL_SUSPEND
            and self._hold(connection, request, pull, wanted)
        ):
            return None
        suggested = self._suggested_broker(result, group)
        next_begin_offset = result.next_begin_offset
        if is_beyond:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            suggested, next_begin_offset = group.broker_id, header.queue_offset
        return response(
            code,
            result.status.name,
            header=PullMessageResponseHeader(
                suggest_which_broker_id=suggested,
                next_begin_offset=next_begin_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            ),
        )

    def _scan(self, header: PullMessageRequestHeader, scan: _Scan, *, may_block: bool) -> GetResult:
        """Look for messages until the turn's work is spent, behind what `scan` has passed already."""
        begun = scan.begun
        begin = header.queue_offset if begun is None else begun.next_begin_offset
        work_left = self._work.left
        result = self._store.get(
            header.topic,
            header.queue_id,
            begin,
            header.max_msg_nums,
            matches=scan.wanted.matches,
            matches_ext=scan.matches_ext,
            matches_record=scan.matches_record,
            max_bytes=header.max_msg_bytes or MAX_PULL_BYTES,
            may_block=may_block,
            begun=begun,
        )
        if begun is not None and begun.message_count and result is not begun:
            # The rest has left the queue meanwhile; what was found is answered nevertheless.
            result = begun
            result.is_cut = False
        if scan.wanted is not EVERYTHING and result.next_begin_offset > begin:
            self._work.spend((result.next_begin_offset - begin) * _UNIT_COST)
        if result.is_cut:
            scan.begun = result
            scan.left -= work_left - self._work.left
        return result

    def _moved(
        self,
        connection: Connection,
        header: PullMessageRequestHeader,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> RemotingCommand | None:
        """Return the answer to a pull that has to go on at the offset of a reset, else None."""
        offset = self._offsets.moved_to(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset, connection
        )
        if offset is None:
            return None
        return response(
            ResponseCode.PULL_OFFSET_MOVED,
            "OFFSET_RESET",
            header=PullMessageResponseHeader(
                suggest_which_broker_id=MASTER_ID,
                next_begin_offset=offset,
                min_offset=self._store.min_offset(header.topic, header.queue_id),
                max_offset=self._store.max_offset(header.topic, header.queue_id),
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            ),
        )

    def _send_found(
        self,
        connection: Connection,
        request: PullRequest,
        result: GetResult,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> None:
        ext = (
            b'"groupSysFlag":"%d","maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
            b'"suggestWhichBrokerId":"%d","topicSysFlag":"%d"'
            % (
                group.group_sys_flag,
                result.max_offset,
                result.min_offset,
                result.next_begin_offset,
                self._suggested_broker(result, group),
                topic.topic_sys_flag,
            )
        )
        # The records leave as they lie in the mapped log: nothing is copied or decoded.
        head = encode_answer(request.opaque, ext, body_length=result.byte_count, remark=b"FOUND")
        connection.reply_encoded(request, head, result.slices)

    def _hold(
        self,
        connection: Connection,
        request: PullRequest,
        pull: WaitingPull | None,
        wanted: MessageFilter,
    ) -> bool:
        """Let a pull wait for messages. Return False if too many wait."""
        header = request.header
        if pull is None:
            pull = WaitingPull(connection, request, self._on_due)
        wait_ms = header.suspend_timeout_millis
        if not self._config.long_polling_enable:
            wait_ms = self._config.short_polling_time_mills
        pull.scan, pull.reads = None, 0
        pull.size = _bytes_beside(header, None)
        pull.deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        pull.places = ((header.topic, header.queue_id),)
        pull.offset = header.queue_offset
        pull.matches = wanted.matches
        pull.matches_properties = wanted.matches_properties
        if wanted.weight:
            pull.matches_properties = _remembered(header.subscription or "")
        pull.is_last_try = True
        return self._waiting.wait(pull, State.MESSAGES)

    def _wait(
        self,
        connection: Connection,
        request: PullRequest,
        pull: WaitingPull | None,
        state: State,
        scan: _Scan | None = None,
        absent: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Let a pull go on, with `scan` if that has begun, when filters have work left or a thread has
        brought `absent` into memory. Raises Refused if too many pulls wait.
        """
        if pull is None:
            pull = WaitingPull(connection, request, self._on_due)
        pull.scan = scan
        pull.size = _bytes_beside(request.header, scan)
        pull.absent = absent
        self._waiting.wait(pull, state)

    def _check(
        self, code: int, header: PullMessageRequestHeader
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Return the group and the topic of a pull, or refuse it in Java's order."""
        if not self._config.broker_permission & PERM_READ:
            raise _forbidden(
                ForbiddenType.BROKER,
                f"the broker[{self._config.broker_ip1}] pulling message is forbidden: "
                f"brokerPermission is {self._config.broker_permission}",
            )
        if code == RequestCode.LITE_PULL_MESSAGE and not self._config.lite_pull_message_enable:
            raise _forbidden(
                ForbiddenType.BROKER,
                f"the broker[{self._config.broker_ip1}] for lite pull consumer is forbidden: "
                "litePullMessageEnable is false",
            )
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.unknown(header.consumer_group),
            )
        if not group.consume_enable:
            raise _forbidden(
                ForbiddenType.GROUP,
                f"subscription group no permission, {group.group_name}: consumeEnable is false",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!",
            )
        if not topic.readable:
            raise _forbidden(
                ForbiddenType.TOPIC,
                f"the topic[{header.topic}] pulling message is forbidden: perm is {topic.perm}",
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        return group, topic

    def _filter(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> MessageFilter:
        """Return what the pull selects, as the request or the group's heartbeat states it."""
        condition: Condition | None = None
        data: ConsumerFilterData | None = None
        matches: TagMatcher | None = None
        weight = 0
        if header.sys_flag & PULL_SUBSCRIPTION:
            if header.subscription in _ALL and is_tag_type(header.expression_type):
                return EVERYTHING  # what follows would come to the same
            try:
                subscription = build_subscription(
                    header.topic, header.subscription, header.expression_type
                )
                if by_class(subscription):
                    return self._predicates.message_filter(subscription)
                if not is_tag_type(subscription.expression_type):
                    check_property_filter(self._config, subscription.expression_type)
                    # If the text does not parse, Java delivers every message; here the pull is
                    # refused.
                    own = compile_expression(subscription.sub_string, subscription.expression_type)
                    condition, weight = own, own.size * TERM_BYTES
                else:
                    matches = tag_matcher(subscription)
            except IllegalArgumentError as error:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"parse the consumer's subscription failed: {error}",
                ) from error
        else:
            subscription = self._known_subscription(header, group)
            if by_class(subscription):
                return self._predicates.message_filter(subscription)
            if not is_tag_type(subscription.expression_type):
                data = self._known_data(header)
                check_property_filter(self._config, subscription.expression_type)
                condition = data.condition
            else:
                online = self._clients.consumer_group(header.consumer_group)
                assert online is not None, "it has the subscription"
                matches = online.tag_matcher(subscription)
        if condition is None:
            return EVERYTHING if matches is None else MessageFilter(matches)
        if self._config.filter_support_retry and is_retry_topic(subscription.topic):
            return retry_filter(subscription.topic, self._filters)
        if data is not None:
            return sql_filter(condition, self._filters.ext_matcher(data))
        return sql_filter(condition, weight=weight)

    def _known_data(self, header: PullMessageRequestHeader) -> ConsumerFilterData:
        """Return the expression that the group's heartbeat brought."""
        data = self._filters.get(header.topic, header.consumer_group)
        if data is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong! "
                f"{self._filters.fault(header.topic, header.consumer_group) or 'send a heartbeat first'}",
            )
        if data.client_version < header.sub_version:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the consumer's consumer filter data not latest: the broker has "
                f"{data.client_version}, the pull {header.sub_version}; send a heartbeat first",
            )
        return data

    def _known_subscription(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> SubscriptionData:
        online = self._clients.consumer_group(header.consumer_group)
        if online is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: no member of {header.consumer_group} is "
                "online; send a heartbeat first",
            )
        if online.broadcasting and not group.consume_broadcast_enable:
            raise _forbidden(
                ForbiddenType.BROADCASTING,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        if self._groups.forbids(header.consumer_group, header.topic):
            raise _forbidden(
                ForbiddenType.SUBSCRIPTION,
                f"the consumer group[{header.consumer_group}] is forbidden for "
                f"topic[{header.topic}]: an administrator has forbidden it, code 353",
            )
        subscription = online.subscriptions.get(header.topic)
        if subscription is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group} does not "
                f"subscribe to {header.topic}; all its members must subscribe to the same topics",
            )
        if subscription.sub_version < header.sub_version:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the consumer's subscription not latest: the broker has {subscription.sub_version}"
                f", the pull {header.sub_version}; send a heartbeat first",
            )
        return subscription

    def _suggested_broker(self, result: GetResult, group: SubscriptionGroupConfig) -> int:
        """Return the id of the broker to pull from next: a slave's if the reader is far behind."""
        if not self._config.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id


def _bytes_beside(header: PullMessageRequestHeader, scan: _Scan | None) -> int:
    """Estimate the bytes that a waiting pull holds besides its frame: the text of its expression,
    the codes of its tags, and the compiled expression of a scan.
    """
    expression = header.subscription
    size = 0 if scan is None else scan.wanted.weight
    if expression is not None and len(expression) > QUICK_LENGTH:
        size += 2 * sys.getsizeof(expression)
    return size


def _remembered(expression: str) -> Callable[[Mapping[str, str]], bool]:
    """Return the test of an expression while that is cached; later, one that all messages pass.

    Compiled, an expression takes up to a hundred times the memory of its text, and pulls with the
    same one share it. A pull that wakes for an unwanted message finds nothing.
    """

    def matches(properties: Mapping[str, str]) -> bool:
        condition = outcomes.get(expression)
        return not isinstance(condition, SqlCondition) or condition(properties) is True

    return matches


def _code_of(result: GetResult, asked_offset: int) -> ResponseCode:
    if result.status is GetStatus.NO_MESSAGE_IN_QUEUE and asked_offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return _CODES[result.status]


def _forbidden(kind: ForbiddenType, remark: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(int(kind))})
