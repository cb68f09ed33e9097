"""Writes down what happens on a cluster in virtual time. Arguments: the seed and the file to write.

The lines have all that another process could do otherwise: each event of the world, each message as
its consumers got it, and the contents of every file of every disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

from cometmq.aio import Producer, PushConsumer, TransactionProducer
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import ConsumeResult, LocalTransactionState
from cometmq.testing import Cluster

_MESSAGES = 20


class Undecided:
    """Lets the broker ask for each transaction."""

    async def execute(self, _message: Message, _argument: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def check(self, _message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


async def main(cluster: Cluster) -> list[str]:
    loop, lines = asyncio.get_running_loop(), list[str]()

    def consumer(name: str, group: str) -> PushConsumer:
        tried: set[str] = set()

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            lines.extend(
                f"{loop.time()} {name} {m.msg_id} {m.queue_id} {m.queue_offset} {m.body!r} "
                f"{m.properties}"
                for m in messages
            )
            again = {m.msg_id for m in messages if m.body.endswith(b"3")} - tried
            tried.update(again)
            return ConsumeResult.RECONSUME_LATER if again else ConsumeResult.SUCCESS

        with cluster.node(name):
            made = PushConsumer(group, listen, namesrv=cluster.namesrv)
            made.subscribe("orders", "*" if group == "all" else "b || a || c")
            return made

    with cluster.node("shop"):
        producer = Producer("shop", namesrv=cluster.namesrv)
        transactions = TransactionProducer("paid", Undecided(), namesrv=cluster.namesrv)
    async with (
        producer,
        transactions,
        consumer("app-1", "all"),
        consumer("app-2", "all"),
        consumer("app-3", "some"),
    ):
        for number in range(_MESSAGES):
            message = Message("orders", b"%d" % number, tags="abcd"[number % 4])
            result = await producer.send(message)
            lines.append(f"{loop.time()} sent {result}")
            await asyncio.sleep(1)
        result = await transactions.send(Message("orders", b"transaction", tags="a"))
        lines.append(f"{loop.time()} sent {result}")
        cluster.kill("broker-b")
        await asyncio.sleep(60)
        await cluster.restart("broker-b")
        await asyncio.sleep(180)
    return lines


def files(cluster: Cluster) -> list[str]:
    """Return a line for each file, with a digest of its contents."""
    lines = []
    for node in cluster.world.nodes.values():
        disk = node.disk
        waiting = [Path("/")]
        while waiting:
            path = waiting.pop()
            if disk.is_directory(path):
                waiting += [path / each for each in sorted(disk.names(path))]
            else:
                lines.append(f"{node.name} {path} {hashlib.sha256(disk.read(path)).hexdigest()}")
    return lines


if __name__ == "__main__":
    with Cluster(clock="virtual", name_servers=2, brokers=2, seed=int(sys.argv[1])) as cluster:
        lines = cluster.run(main(cluster))
    lines += [str(event) for event in cluster.world.history]
    lines += files(cluster)
    Path(sys.argv[2]).write_text("\n".join(lines))
