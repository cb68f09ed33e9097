"""Provide the asyncio producer of transactional messages.

The producer sends a half message, which no consumer sees. Then its listener does the local part, a
database transaction say, and the listener's verdict commits the message or rolls it back. If the
broker gets no verdict, because the listener does not know one or the producer died, it asks any
producer of the group. The listener of that one then looks up the outcome of the local part.

Java: TransactionMQProducer, DefaultMQProducerImpl.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Protocol

from cometmq.client.cluster.routes import REFRESH_INTERVAL_S
from cometmq.client.hooks import EndTransactionContext
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import check_range
from cometmq.client.options import takes
from cometmq.client.producing.producer import Producer, ProducerOptions
from cometmq.client.pulling.received import decompress_body
from cometmq.errors import CometMQError, IllegalArgumentError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.durations import Duration
from cometmq.model.failure import exception_text
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import AUTO_CREATE_TOPIC, check_topic
from cometmq.model.results import (
    LocalTransactionState,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from cometmq.model.sysflag import (
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from cometmq.protocol import requests
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.record import StoredRecord
from cometmq.remoting.connection import Connection
from cometmq.runtime.daemon_threads import DaemonThreads

log = get_logger(__name__)

MAX_PENDING_CHECKS: Final = 2000
_VERDICTS: Final = {
    LocalTransactionState.COMMIT: TRANSACTION_COMMIT,
    LocalTransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    LocalTransactionState.UNKNOWN: TRANSACTION_NOT,
}
_DELAYS: Final = (p.DELAY_TIME_LEVEL, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)
# How long to wait before asking for a route again when no name server answered.
_REACH_AGAIN_S: Final = 1.0
# In characters. A verdict's remark appears in the broker's log, so it is kept short.
_MAX_REMARK: Final = 500

State = LocalTransactionState | Awaitable[LocalTransactionState]


class TransactionListener(Protocol):
    """Does the local part of a transaction, and reports its outcome. Users provide it.

    Both methods may be functions, which the producer calls in a thread of its own, or coroutine
    functions, which run on its loop. An exception counts as UNKNOWN and is logged.
    """

    def execute(self, message: Message, arg: Any, /) -> State:
        """Do the local part; the broker has stored the half message already."""

    def check(self, message: MessageExt, /) -> State:
        """Report the outcome of the local part, which another producer of the group may have
        done.
        """


@dataclass(repr=False)
class TransactionProducerOptions(ProducerOptions):
    """Holds the options of a transaction producer; TransactionProducer explains them."""

    listener: TransactionListener
    _: KW_ONLY
    topics: Sequence[str] = ()
    concurrency: int = 20
    max_pending_checks: int = MAX_PENDING_CHECKS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("concurrency", self.concurrency, 1, 10_000)
        check_range("max_pending_checks", self.max_pending_checks, 1, 1_000_000)
        if inspect.isclass(self.listener):
            raise IllegalArgumentError(
                f"the listener {self.listener!r:.80} is a class; pass an object of it"
            )
        if isinstance(self.topics, str) or not isinstance(self.topics, Iterable):
            raise IllegalArgumentError(f"topics is {self.topics!r:.80}; pass a list of topic names")
        for name in ("execute", "check"):
            if not callable(getattr(self.listener, name, None)):
                raise IllegalArgumentError(
                    f"the listener {self.listener!r:.80} has no method {name}; it needs "
                    "execute(message, arg) and check(message)"
                )
        self.topics = tuple(self.topics)
        for topic in self.topics:
            check_topic(topic)


class TransactionProducer(Producer):
    """Sends messages as `Producer` does, and transactional messages.

    `listener` has `execute(message, arg)` and `check(message)`; see TransactionListener. At most
    `concurrency` calls of its functions run at once, and at most `max_pending_checks` questions of
    brokers wait. A broker asks only producers that are connected to it. So this producer connects
    to the brokers of the topics that it sends to, to those of `topics`, and to all that create
    topics on demand. Producer explains the other options.
    """

    @takes(TransactionProducerOptions)
    def __init__(self, options: TransactionProducerOptions) -> None:
        self._set_up(options)
        self._listener = options.listener
        self._topics = options.topics
        self._concurrency = options.concurrency
        self._max_pending_checks = options.max_pending_checks
        self._pending_checks = 0
        self._threads: DaemonThreads | None = None

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: Duration | None = None
    ) -> TransactionSendResult:
        """Send a half message, run `listener.execute(message, arg)`, and send the broker its
        verdict.

        The result's `state` is the verdict, or UNKNOWN when the listener raised. The producer sends
        the verdict without waiting for an acknowledgement: if it is lost, the broker asks. Raises
        what `send` raises; the listener was not called then. When the broker could not flush or
        replicate the half message in time, the producer rolls it back without calling the listener,
        as in Java.
        """
        sender, encoder = self._ready()
        await self._prepare(message)
        for name in _DELAYS:
            if name in message.properties:
                raise IllegalArgumentError(
                    f"the message has the property {name}; a message of a transaction cannot be "
                    "delayed"
                )
        half = message.copy()
        half.properties[p.TRANSACTION_PREPARED] = "true"
        half.properties[p.PRODUCER_GROUP] = self._group
        outgoing = await encoder.encode(half)
        outgoing.ext["f"] = str(int(outgoing.ext["f"]) | TRANSACTION_PREPARED)
        result = await sender.send(outgoing, self._timeout_s(timeout_ms))
        message.properties[p.UNIQ_CLIENT_MESSAGE_ID] = outgoing.unique_id
        message.transaction_id = result.transaction_id or outgoing.unique_id
        state, remark = LocalTransactionState.ROLLBACK, f"the half message is {result.status.value}"
        if result.status is SendStatus.SEND_OK:
            state, remark = await self._ask_listener("execute", message, arg)
        await self._end(message, result, state, remark)
        return TransactionSendResult(
            result.status,
            result.msg_id,
            result.offset_msg_id,
            result.queue,
            result.queue_offset,
            message.transaction_id,
            result.region_id,
            result.trace_on,
            state=state,
        )

    # Inside

    async def _open(self, instance: ClientInstance) -> None:
        await super()._open(instance)
        self._threads = DaemonThreads(self._concurrency, f"transaction-{self._group}")
        assert self._tasks is not None, "set just now"
        for topic in (AUTO_CREATE_TOPIC, *map(self._namespace.wrap, self._topics)):
            self._tasks.spawn(self._reach(instance, topic), f"reach-{topic}")

    def _join(self, instance: ClientInstance) -> None:
        instance.add_producer(self._group, self._on_check)

    async def _shut(self, instance: ClientInstance) -> None:
        try:
            await super()._shut(instance)
        finally:
            assert self._threads is not None, "set by start"
            self._threads.close()

    async def _reach(self, instance: ClientInstance, topic: str) -> None:
        """Fetch the route of a topic until it is known. The heartbeat that follows makes the
        topic's brokers know this producer: they ask no other.
        """
        while instance.routes.route(topic) is None:
            try:
                await instance.routes.refresh(topic)
            except RouteNotFoundError:
                await asyncio.sleep(REFRESH_INTERVAL_S)
            except CometMQError as error:
                log.debug("no route yet", topic=topic, reason=str(error))
                await asyncio.sleep(_REACH_AGAIN_S)

    async def _ask_listener(self, method: str, *args: Any) -> tuple[LocalTransactionState, str]:
        """Return the listener's verdict. If the listener failed, return UNKNOWN and the reason."""
        try:
            state = await self._call_listener(getattr(self._listener, method), *args)
        except Exception as error:
            message: Message = args[0]
            log.exception(
                "the transaction listener failed, the broker will ask",
                method=method,
                group=self._group,
                unique_id=message.unique_id,
            )
            return (
                LocalTransactionState.UNKNOWN,
                f"{method} failed: {type(error).__name__}: {exception_text(error)}",
            )
        if isinstance(state, LocalTransactionState):
            return state, ""
        log.warning(
            "the transaction listener returned no LocalTransactionState, the broker will ask",
            method=method,
            group=self._group,
            returned=repr(state)[:100],
        )
        return LocalTransactionState.UNKNOWN, f"{method} returned no state"

    async def _call_listener(self, function: Callable[..., Any], *args: Any) -> Any:
        call = getattr(function, "__call__", None)  # noqa: B004 - its kind is asked
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
            return await function(*args)
        assert self._threads is not None, "set by start"
        return await self._threads.run(contextvars.copy_context().run, function, *args)

    async def _end(
        self, message: Message, result: SendResult, state: LocalTransactionState, remark: str
    ) -> None:
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=parse_offset_id(result.offset_msg_id).commit_log_offset,
            commit_or_rollback=_VERDICTS[state],
            msg_id=result.msg_id,
            topic=self._namespace.wrap(message.topic),
            transaction_id=result.transaction_id,
            broker_name=result.queue.broker_name,
        )
        try:
            instance = self._running()
            address = instance.need_master(result.queue.broker_name, message.topic)
            self._call_hooks(message, result.msg_id, address, state, from_check=False)
            await instance.remoting.send_oneway(address, _verdict(header, remark))
        except CometMQError as error:
            log.warning(
                "a transaction's verdict was not sent, the broker will ask",
                group=self._group,
                unique_id=result.msg_id,
                reason=str(error),
            )

    def _call_hooks(
        self,
        message: Message,
        msg_id: str,
        address: str,
        state: LocalTransactionState,
        *,
        from_check: bool,
    ) -> None:
        if self._hooks.end_transaction:
            context = EndTransactionContext(
                self.group, message, msg_id, message.transaction_id, address, state, from_check
            )
            self._hooks.on_end_transaction(context)

    def _on_check(
        self,
        connection: Connection,
        header: CheckTransactionStateRequestHeader,
        record: StoredRecord,
    ) -> None:
        if self._pending_checks >= self._max_pending_checks:
            log.warning(
                "a broker's question is dropped, it will ask again",
                group=self._group,
                pending=self._pending_checks,
                limit="max_pending_checks",
            )
            return
        assert self._tasks is not None, "set by start"
        self._pending_checks += 1
        self._tasks.spawn(self._check(connection, header, record), "check-transaction")

    async def _check(
        self,
        connection: Connection,
        header: CheckTransactionStateRequestHeader,
        record: StoredRecord,
    ) -> None:
        try:
            message = record.to_message(header.broker_name or "")
            if message.sys_flag & COMPRESSED:
                decompress_body(message)
            message.transaction_id = header.transaction_id or message.unique_id
            topic, message.topic = message.topic, self._namespace.unwrap(message.topic)
            state, remark = await self._ask_listener("check", message)
            answer = EndTransactionRequestHeader(
                producer_group=self._group,
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_offset=header.commit_log_offset,
                commit_or_rollback=_VERDICTS[state],
                msg_id=message.msg_id,
                from_transaction_check=True,
                topic=topic,
                transaction_id=header.transaction_id,
                broker_name=header.broker_name,
            )
            peer, command = connection.peer, _verdict(answer, remark)
            self._call_hooks(message, message.msg_id, peer, state, from_check=True)
            assert self._opened is not None, "set by start"
            self._opened.remoting.rpc_hooks.before(peer, command)
            connection.send_oneway(command)
        except CometMQError as error:
            log.warning("a broker's question is not answered", reason=str(error))
        finally:
            self._pending_checks -= 1


def _verdict(header: EndTransactionRequestHeader, remark: str) -> RemotingCommand:
    command = requests.END_TRANSACTION.command(header)
    command.remark = remark[:_MAX_REMARK] or None
    return command
