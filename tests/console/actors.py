"""Real clients that bring a cluster into the states that the console shows.

Each function leaves one state behind: messages that wait, dead letters, half messages, delayed
messages, a trace. `Actors` closes what it has started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, Self

from tests.integration.client_faces import PATIENT
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
    TransactionProducer,
    TransactionSendResult,
)
from cometmq.errors import RemoteError, RouteNotFoundError

FIRST: Final = ConsumeFromWhere.FIRST_OFFSET
# Has a broker give a half message up after three seconds of questions, which leave a producer that is
# asked again enough time to answer.
QUICK_CHECKS: Final = {
    "transactionTimeOut": "100",
    "transactionCheckInterval": "200",
    "transactionOpBatchInterval": "100",
    "transactionCheckMax": "15",
}
_HOUR_S: Final = 3600
Handle = Callable[[list[MessageExt]], ConsumeResult]


class Bank:
    """Answers for transactions what `verdict` is at that moment, and keeps who was asked about."""

    def __init__(self) -> None:
        self.verdict = LocalTransactionState.UNKNOWN
        self.asked: list[str] = []

    def execute(self, message: Message, arg: Any, /) -> LocalTransactionState:
        return self.verdict

    def check(self, message: MessageExt, /) -> LocalTransactionState:
        self.asked.append(message.msg_id)
        return self.verdict


class Member:
    """Is a consumer that keeps what it got. `hold` makes its listener wait, `release` ends that."""

    def __init__(self) -> None:
        self.received: list[MessageExt] = []
        self._free = threading.Event()
        self._free.set()
        self.client: PushConsumer

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def take(self, messages: list[MessageExt]) -> ConsumeResult:
        self._free.wait(WAIT_S)
        self.received += messages
        return ConsumeResult.SUCCESS

    def wait_for(self, count: int) -> list[MessageExt]:
        return eventually(lambda: list(self.received), lambda received: len(received) >= count)


class Actors:
    """Starts clients of one cluster and closes them at the end. Any thread may use it."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def producer(self, group: str, **options: Any) -> Producer:
        made = Producer(group, namesrv=self.namesrv, **{**PATIENT, **options})
        return self._stack.enter_context(made)

    def bank(self, group: str, listener: Bank, **options: Any) -> TransactionProducer:
        made = TransactionProducer(group, listener, namesrv=self.namesrv, **{**PATIENT, **options})
        return self._stack.enter_context(made)

    def consumer(
        self, group: str, topic: str, handle: Handle, tags: str = "*", **options: Any
    ) -> PushConsumer:
        """Start a member that begins at a topic's first message; listeners are released at the end."""
        given = {"namesrv": self.namesrv, "consume_from": FIRST, **options}
        made = PushConsumer(group, handle, **given)
        made.subscribe(topic, tags)
        return self._stack.enter_context(made)

    def member(self, group: str, topic: str, tags: str = "*", **options: Any) -> Member:
        member = Member()
        member.client = self.consumer(group, topic, member.take, tags, **options)
        # Before its client is closed, which waits for the listener.
        self._stack.callback(member.release)
        return member

    def bury(self, group: str, topic: str, bodies: list[bytes]) -> list[SendResult]:
        """Send messages that a member of `group` refuses: they become its dead letters.

        The member is gone when this returns, so that letters which are sent again are not refused.
        """
        producer = self.producer(f"{topic}-sender")
        sent = [
            producer.send(Message(topic, body, tags="refused", keys=[f"letter-{number}"]))
            for number, body in enumerate(bodies)
        ]
        refuse = cometmq.PushConsumer(
            group,
            lambda _: ConsumeResult.RECONSUME_LATER,
            namesrv=self.namesrv,
            consume_from=FIRST,
            max_reconsume_times=0,
        )
        refuse.subscribe(topic)
        with refuse, cometmq.AdminClient(self.namesrv) as admin:
            eventually(
                lambda: list(admin.messages.dead_letters(group)),
                lambda letters: len(letters) >= len(bodies),
                passing=(RouteNotFoundError, RemoteError),
            )
        return sent

    def forget(self, group: str, topic: str, body: bytes, bank: Bank) -> TransactionSendResult:
        """Send a half message on which nobody decides; return when the broker has given it up.

        The cluster needs QUICK_CHECKS. Its producer stays, and answers by `bank` when it is asked
        again.
        """
        producer = self.bank(group, bank, topics=[topic])
        sent = producer.send_in_transaction(Message(topic, body, keys=["forgotten"]))
        with cometmq.AdminClient(self.namesrv) as admin:
            eventually(
                lambda: [half.msg_id for half in admin.messages.given_up_halves()],
                lambda given_up: sent.msg_id in given_up,
                passing=(RouteNotFoundError, RemoteError),
            )
        return sent

    def leave_waiting(self, group: str, topic: str, body: bytes) -> TransactionSendResult:
        """Send a half message about which the broker asks nobody for an hour."""
        later = {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(_HOUR_S)}
        message = Message(topic, body, keys=["waiting"], properties=later)
        return self.bank(group, Bank(), topics=[topic]).send_in_transaction(message)

    def trace(self, group: str, topic: str, body: bytes) -> SendResult:
        """Send and consume a message with clients that write traces."""
        options: dict[str, Any] = {**PATIENT, "enable_trace": True}
        with Producer(f"{group}-sender", namesrv=self.namesrv, **options) as producer:
            sent = producer.send(Message(topic, body, tags="traced", keys=[f"{topic}-traced"]))
        member = Member()
        traced = PushConsumer(
            group, member.take, namesrv=self.namesrv, consume_from=FIRST, enable_trace=True
        )
        traced.subscribe(topic)
        # A client that closes writes what it has traced.
        with traced:
            member.wait_for(1)
        return sent
