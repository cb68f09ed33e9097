"""Pull one queue again and again while it is assigned (Java: DefaultMQPushConsumerImpl)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from cometmq.client.cluster.broker_api import PullAnswer
from cometmq.client.consuming.listeners.consume_hooks import Admission
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.offset_store import OffsetStore
from cometmq.client.pulling.damage import DamageControl
from cometmq.client.pulling.process_queue import FlowLimits, ProcessQueue
from cometmq.client.pulling.received import DamagedRecord, wanted_messages
from cometmq.errors import (
    CometMQError,
    DamagedMessageError,
    ProtocolError,
    RemoteError,
    RemotingError,
    RouteNotFoundError,
)
from cometmq.filtering.tags import is_tag_type
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import DamagedMessage, PullResult, PullStatus
from cometmq.model.route import MASTER_ID
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import (
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import PullMessageRequestHeader
from cometmq.runtime.back_off import BackOff

log = get_logger(__name__)

SUSPEND_MS: Final = 15_000
SUSPEND_LITE_MS: Final = 20_000
PULL_TIMEOUT_S: Final = 30.0
# A broker has taken the offset that a pull carries this long after the pull was sent.
PULL_SERVED_S: Final = 0.5
FLOW_CONTROL_PAUSE_S: Final = 0.05
BROKER_FLOW_CONTROL_PAUSE_S: Final = 0.02

# The broker does not know this member, or knows an older subscription; a heartbeat mends that.
_FORGOTTEN: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Says how much to pull at a time, and when to pause.

    Limits for a topic that are not -1 are divided among the topic's assigned queues, and then
    replace those in `flow` (Java: RebalancePushImpl.messageQueueChanged).
    """

    batch_size: int = 32
    interval_ms: int = 0
    flow: FlowLimits = field(default_factory=FlowLimits)
    messages_for_topic: int = -1
    size_bytes_for_topic: int = -1
    # A lite pull carries its subscription and commits nothing.
    lite: bool = False

    def flow_for(self, queue_count: int) -> FlowLimits:
        """Return the limits for one of `queue_count` queues of a topic."""
        flow = self.flow
        if self.messages_for_topic >= 0:
            flow = replace(flow, messages=max(1, self.messages_for_topic // queue_count))
        if self.size_bytes_for_topic >= 0:
            flow = replace(flow, size_bytes=max(1, self.size_bytes_for_topic // queue_count))
        return flow


@dataclass(frozen=True, slots=True, kw_only=True)
class PullContext:
    """Holds what all pullers of a member share.

    `subscription` returns the present subscription to a topic. `deliver` takes the messages that were
    put into a process queue. `on_offset_moved` takes a queue when the broker refused its offset, and
    the offset to go on from. `queue_count` returns how many queues of a topic are assigned. While
    `overfull` returns True, no puller begins a pull. `admit` returns the pulled messages that the
    consumer may see. `damage` deals with damaged records; if it stops a queue, its puller calls
    `on_stopped` and ends.
    """

    instance: ClientInstance
    group: str
    options: PullOptions
    offsets: OffsetStore
    subscription: Callable[[str], SubscriptionData | None]
    deliver: Callable[[ProcessQueue, list[MessageExt]], None]
    on_offset_moved: Callable[[MessageQueue, int], None]
    damage: DamageControl
    queue_count: Callable[[str], int] = lambda _: 1
    overfull: Callable[[], bool] = lambda: False
    admit: Admission | None = None
    on_stopped: Callable[[ProcessQueue, DamagedRecord], None] = lambda *_: None


class QueuePuller:
    """Keeps one process queue filled. `run` is a task of the consumer that owns the queue.

    While `gate` is not set, the puller begins no pull.
    """

    def __init__(
        self,
        context: PullContext,
        process_queue: ProcessQueue,
        next_offset: int,
        gate: asyncio.Event | None = None,
    ) -> None:
        self._process_queue = process_queue
        self._queue = process_queue.queue
        self._next_offset = next_offset
        self._gate = gate
        # Values that each pull uses are held here: an attribute of an attribute costs more.
        self._instance = context.instance
        self._monotonic = context.instance.clock.monotonic
        self._now_ms = context.instance.clock.now_ms
        self._group = context.group
        self._options = context.options
        self._offsets = context.offsets
        self._subscription = context.subscription
        self._deliver = context.deliver
        self._on_offset_moved = context.on_offset_moved
        self._damage = context.damage
        self._queue_count = context.queue_count
        self._overfull = context.overfull
        self._admit = context.admit
        self._on_stopped = context.on_stopped
        # The offset of the last pull whose answer had bytes that are no record, to pull once more.
        self._doubted = -1
        # When the unanswered pull was sent, in seconds of the monotonic clock; None without one.
        self._asked_at: float | None = None
        self._stopped = False
        self._broker_id = MASTER_ID
        self._back_off = BackOff()
        # Why the last pull failed, for those who ask the member; empty after one that did not.
        self.failure = ""

    async def run(self) -> None:
        while not self._process_queue.dropped and not self._stopped:
            if self._gate is not None and not self._gate.is_set():
                await self._gate.wait()
                continue
            flow = self._options.flow_for(max(1, self._queue_count(self._queue.topic)))
            if self._process_queue.exceeded(flow) is not None or self._overfull():
                await self._process_queue.wait_removed(FLOW_CONTROL_PAUSE_S)
                continue
            subscription = self._subscription(self._queue.topic)
            if subscription is None:
                return
            try:
                asked = self._next_offset
                answer = await self._pull(subscription)
                self.failure = ""
                self._take(answer, subscription)
                if answer.status is PullStatus.NO_MATCHED_MSG and self._next_offset == asked:
                    # A slave that does not have this offset yet says so, and nothing makes it wait.
                    await self._back_off.wait()
                else:
                    self._back_off.reset()
            except (RemotingError, RouteNotFoundError) as error:
                self.failure = str(error)
                await self._after_failure(error)
            except RemoteError as error:
                self.failure = str(error)
                await self._after_refusal(error)
            except ProtocolError as error:
                self.failure = str(error)
                log.exception("a pull's answer does not decode", queue=str(self._queue))
                await self._back_off.wait()
            if self._options.interval_ms:
                await asyncio.sleep(self._options.interval_ms / 1000)

    def stop(self) -> None:
        """Send no more pulls, and ignore the answer of the pull under way."""
        self._stopped = True

    async def end(self, run: asyncio.Task[None]) -> None:
        """Stop, and end the task `run`, so that no pull's offset replaces the one committed next.

        A Java broker serves pulls and commits of one connection in different threads, and keeps the
        offset that comes last. So this method waits until the broker has taken the offset of a pull
        that was sent a moment ago. An older pull only waits at the broker for messages.
        """
        self.stop()
        if self._asked_at is not None:
            rest_s = self._asked_at + PULL_SERVED_S - self._monotonic()
            if rest_s > 0:
                await asyncio.wait((run,), timeout=rest_s)
        run.cancel()

    async def _pull(self, subscription: SubscriptionData) -> PullAnswer:
        queue = self._queue
        address = self._instance.need_reader(queue.broker_name, queue.topic, self._broker_id)
        if self._options.lite:
            header = lite_header(
                self._group,
                self._queue,
                self._next_offset,
                self._options.batch_size,
                subscription,
                SUSPEND_LITE_MS,
            )
        else:
            header = self._header(address, subscription)
        asked_at = self._asked_at = self._monotonic()
        try:
            return await self._instance.brokers.pull(address, header, PULL_TIMEOUT_S)
        except CometMQError as error:
            error.address = error.address or address
            raise
        finally:
            self._asked_at = None
            self._process_queue.last_pull_s = self._monotonic() - asked_at

    def _header(self, address: str, subscription: SubscriptionData) -> PullMessageRequestHeader:
        commit_offset = self._offsets.pull_offset(self._queue)
        sys_flag = PULL_SUSPEND
        master = self._instance.routes.master_address(self._queue.broker_name)
        if commit_offset > 0 and address == master:
            sys_flag |= PULL_COMMIT_OFFSET
        return PullMessageRequestHeader(
            consumer_group=self._group,
            topic=self._queue.topic,
            queue_id=self._queue.queue_id,
            queue_offset=self._next_offset,
            max_msg_nums=self._options.batch_size,
            sys_flag=sys_flag,
            commit_offset=commit_offset,
            suspend_timeout_millis=SUSPEND_MS,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
        )

    def _take(self, answer: PullAnswer, subscription: SubscriptionData) -> None:
        if self._process_queue.dropped or self._stopped:
            return
        header = answer.header
        self._broker_id = header.suggest_which_broker_id
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "the broker moved the offset of a queue",
                queue=str(self._queue),
                asked=self._next_offset,
                next=header.next_begin_offset,
            )
            self._on_offset_moved(self._queue, header.next_begin_offset)
            return
        messages: list[MessageExt] = []
        damaged: list[DamagedRecord] = []
        if answer.status is PullStatus.FOUND:
            messages, damaged = wanted_messages(
                answer, self._queue, self._next_offset, self._group, subscription
            )
            if damaged:
                self._doubt(damaged)
            if self._admit is not None:
                messages = self._admit(self._queue, messages)
        below = messages[0].queue_offset if messages else header.next_begin_offset
        self._process_queue.learn(header.max_offset, self._next_offset if damaged else below)
        if damaged and self._go_past(damaged, messages):
            return
        self._next_offset = header.next_begin_offset
        if messages:
            self._put(messages)
        elif not self._process_queue and not self._options.lite:
            # No message is held, so all below the next offset are done with, filtered ones too.
            self._offsets.update(self._queue, self._next_offset, increase_only=True)

    def _put(self, messages: list[MessageExt]) -> None:
        self._process_queue.put(messages)
        self._deliver(self._process_queue, messages)

    def _doubt(self, damaged: list[DamagedRecord]) -> None:
        """Raise ProtocolError once for an answer with bytes that are no record, so that the same
        offset is pulled once more: the broker's next answer may be sound.
        """
        passing = next((found for found in damaged if found.is_passing), None)
        if passing is not None and self._doubted != self._next_offset:
            self._doubted = self._next_offset
            raise ProtocolError(str(passing))

    def _go_past(self, damaged: list[DamagedRecord], messages: list[MessageExt]) -> bool:
        """Deliver the messages in front of each damaged record, and then deal with the record.
        Messages behind the last one stay in `messages`. Return True when the queue is stopped.
        """
        for found in damaged:
            count = 0
            while count < len(messages) and messages[count].queue_offset < found.queue_offset:
                count += 1
            if count:
                self._put(messages[:count])
                del messages[:count]
            if self._damage.met(self._process_queue, found):
                self._stopped = True
                self._on_stopped(self._process_queue, found)
                return True
        return False

    async def _after_failure(self, error: CometMQError) -> None:
        log.debug("pull failed", queue=str(self._queue), reason=str(error))
        self._broker_id = MASTER_ID
        self._instance.report_failure(error, self._queue.topic, error.address)
        await self._back_off.wait()

    async def _after_refusal(self, error: RemoteError) -> None:
        if error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BROKER_FLOW_CONTROL_PAUSE_S)
            return
        log.info("pull refused", queue=str(self._queue), code=error.code, reason=str(error))
        # A slave may refuse what its master serves, for as long as an operator takes to mend it.
        self._broker_id = MASTER_ID
        if error.code in _FORGOTTEN and error.address is not None:
            try:
                await self._instance.heartbeats.beat(error.address)
            except CometMQError as failure:
                log.debug("heartbeat failed", address=error.address, reason=str(failure))
        else:
            self._instance.report_failure(error, self._queue.topic, error.address)
        await self._back_off.wait()


def lite_header(
    group: str,
    queue: MessageQueue,
    offset: int,
    max_messages: int,
    subscription: SubscriptionData,
    suspend_ms: int,
) -> PullMessageRequestHeader:
    """Make the header of a pull that carries its subscription, so it needs none in a heartbeat."""
    return PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=PULL_SUBSCRIPTION | PULL_LITE | (PULL_SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0 if is_tag_type(subscription.expression_type) else subscription.sub_version,
        subscription=subscription.sub_string,
        expression_type=subscription.expression_type,
    )


async def pull_once(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    offset: int,
    max_messages: int,
    subscription: SubscriptionData,
    suspend_ms: int,
    timeout_s: float,
    on_damaged: DamagedMessage = DamagedMessage.SKIP,
) -> PullResult:
    """Pull once, for a caller that keeps its own position.

    With STOP the result has the messages in front of a damaged one, and a pull that begins with a
    damaged message raises DamagedMessageError. Else damaged messages are logged and left out.
    """
    if not instance.routes.read_addresses(queue.broker_name):
        await instance.routes.refresh(queue.topic)
    address = instance.need_reader(queue.broker_name, queue.topic)
    header = lite_header(group, queue, offset, max_messages, subscription, suspend_ms)
    answer = await instance.brokers.pull(address, header, timeout_s)
    messages: list[MessageExt] = []
    next_offset = answer.header.next_begin_offset
    if answer.status is PullStatus.FOUND:
        messages, damaged = wanted_messages(answer, queue, offset, group, subscription)
        for found in damaged:
            if on_damaged is DamagedMessage.STOP and not found.surplus:
                messages = [m for m in messages if m.queue_offset < found.queue_offset]
                if not messages:
                    raise damaged_error(found)
                next_offset = found.queue_offset
                break
            log.error("a damaged message is left out of a pull", group=group, message=str(found))
    return PullResult(
        answer.status,
        next_offset,
        answer.header.min_offset,
        answer.header.max_offset,
        messages,
        answer.header.suggest_which_broker_id,
    )


def damaged_error(damaged: DamagedRecord) -> DamagedMessageError:
    return DamagedMessageError(
        f"a message is damaged ({damaged}); go on behind it to leave it out",
        queue_offset=damaged.queue_offset,
        data=damaged.data,
    )
