"""Drive transaction producers of both faces, and record what their listeners say and are asked."""

from __future__ import annotations

import threading
from typing import Any, Final

from tests.integration.client_faces import PATIENT, AsyncFace, BlockingFace, Received
from tests.waits import eventually

import cometmq
import cometmq.aio
from cometmq import ConsumeFromWhere, LocalTransactionState, Message, MessageExt
from cometmq.testing import Cluster

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)
FIRST = ConsumeFromWhere.FIRST_OFFSET
COMMITTED: Final = 8
QUICK: Final = {
    "transactionTimeOut": "100",
    "transactionCheckInterval": "150",
    "transactionOpBatchInterval": "100",
    # A message is not given up, however long its producer takes to answer.
    "transactionCheckMax": "1000",
}


def unresolved(cluster: Cluster) -> int:
    return cluster.brokers[0].transactions.unresolved_count


class Listener:
    """Gives the configured verdicts, and remembers the questions."""

    def __init__(self, execute: Any = COMMIT, check: Any = UNKNOWN) -> None:
        self.verdicts = {"execute": execute, "check": check}
        self.executed: list[tuple[Message, Any, str]] = []
        self.checked: list[MessageExt] = []

    def execute(self, message: Message, arg: Any) -> Any:
        self.executed.append((message, arg, threading.current_thread().name))
        return self._say("execute")

    def check(self, message: MessageExt) -> Any:
        self.checked.append(message)
        return self._say("check")

    def _say(self, what: str) -> Any:
        verdict = self.verdicts[what]
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def wait_checked(self, count: int = 1) -> None:
        eventually(lambda: len(self.checked) >= count)


class CoroutineListener(Listener):
    async def execute(self, message: Message, arg: Any) -> Any:
        return super().execute(message, arg)

    async def check(self, message: MessageExt) -> Any:
        return super().check(message)


class Face:
    """Makes transaction producers and consumers of one face, which closes them at the end."""

    def __init__(self, face: BlockingFace) -> None:
        self.face = face
        self.listener: type[Listener] = (
            CoroutineListener if isinstance(face, AsyncFace) else Listener
        )

    def producer(self, group: str, listener: Listener, **options: Any) -> Any:
        options = {"namesrv": self.face.namesrv, **PATIENT, **options}
        client: Any
        if isinstance(self.face, AsyncFace):
            client = self.face.on_loop(cometmq.aio.TransactionProducer, group, listener, **options)
        else:
            client = cometmq.TransactionProducer(group, listener, **options)
        return self.face.started(client)

    def received(self, topic: str) -> Received:
        received = Received()
        self.face.consumer(f"{topic}-group", topic, received.handle, consume_from=FIRST)
        return received
