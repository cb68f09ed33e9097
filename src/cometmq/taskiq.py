"""Provide a broker for taskiq: tasks are messages of a topic, workers are members of a group (the extra `taskiq`).

from cometmq.taskiq import RocketMQBroker

broker = RocketMQBroker("127.0.0.1:9876")

@broker.task
async def charge(order_id: str) -> None: ...

await charge.kiq("O-1")
await charge.kicker().with_labels(delay=30).kiq("O-2")  # in 30 s
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from cometmq.aio import Producer, ReceivedMessage, SimpleConsumer
from cometmq.client.limits import check_range
from cometmq.client.popping.renewals import Renewals
from cometmq.errors import IllegalArgumentError
from cometmq.extras import needs
from cometmq.model.durations import Duration, milliseconds
from cometmq.model.message import Message
from cometmq.runtime.tasks import TaskOwner

with needs("taskiq", "cometmq.taskiq"):
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage

_DAY_MS: Final = 24 * 3600 * 1000


class RocketMQBroker(AsyncBroker):
    """Sends tasks to a topic, and receives them in workers as a group that pops.

    Each task runs at least once: its message is acknowledged when taskiq says so (`--ack-type` of the
    worker, by default after the result is saved). While a task waits or runs in a worker, its message is
    hidden from the other workers. The worker renews this time, `invisible_ms`, for `longest_task_ms` at
    most. The message comes again at once if the worker stops, and within `invisible_ms` if the worker is
    killed. A task that was delivered as often as the group allows (`retryMaxTimes`) is a dead letter.

    Any number of workers share the topic's queues. A worker takes up to `prefetch` tasks (1 to 32) at a
    time. The label `delay` of a task (seconds, or a timedelta) has the broker deliver it later.
    `options` are those of both clients: `namespace`, `tls`, `access_key` and the others of ClientOptions.

    The servers must know POP: CometMQ, or Java's from 5.0 on.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        invisible_ms: Duration = 60_000,
        longest_task_ms: Duration = 6 * 3600 * 1000,
        prefetch: int = 16,
        **options: Any,
    ) -> None:
        super().__init__()
        self._topic = topic
        check_range("longest_task_ms", milliseconds(longest_task_ms), 1, 30 * _DAY_MS)
        self._producer = Producer(f"{group}-producer", namesrv=namesrv, **options)
        self._consumer = SimpleConsumer(
            group, namesrv=namesrv, max_messages=prefetch, invisible_ms=invisible_ms, **options
        )
        self._consumer.subscribe(topic)
        # The tasks that this worker has.
        self._held = Renewals(
            f"taskiq worker of {group}", milliseconds(invisible_ms), milliseconds(longest_task_ms)
        )
        self._tasks = TaskOwner(f"taskiq-{group}")

    async def startup(self) -> None:
        """Start the producer, and in a worker the consumer. Raises what their `start` raises.

        A broker starts once, as its clients do; make a new one after `shutdown`.
        """
        await self._producer.start()
        if self.is_worker_process:
            await self._consumer.start()
            self._tasks.spawn(self._held.renew(), "renew")
        await super().startup()

    async def shutdown(self) -> None:
        """Give back the tasks that did not end, and close the clients."""
        try:
            await super().shutdown()
        finally:
            if self.is_worker_process:
                await self._tasks.close()
                await self._held.give_back()
                await self._consumer.close()
            await self._producer.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task. Raises CometMQError if no broker takes it, IllegalArgumentError for its delay."""
        await self._producer.send(
            Message(
                self._topic,
                message.message,
                keys=message.task_id,
                delay_ms=_delay_ms(message.labels.get("delay")),
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Receive tasks until the consumer is closed; ask servers again that cannot be reached."""
        lists = aiter(self._consumer)
        while messages := await lists.next_list():
            self._held.add(messages)
            for index, message in enumerate(messages):
                try:
                    yield AckableMessage(data=message.body, ack=self._acknowledging(message))
                except GeneratorExit:
                    await self._held.give_back(messages[index + 1 :])
                    raise

    def _acknowledging(self, message: ReceivedMessage) -> Callable[[], Awaitable[None]]:
        async def acknowledge() -> None:
            self._held.let_go(message)
            await message.ack()

        return acknowledge


def _delay_ms(delay: object) -> int | None:
    """Return the label `delay` in ms. Raises IllegalArgumentError unless it is a length of time."""
    if delay is None:
        return None
    if isinstance(delay, timedelta):
        return milliseconds(delay) or None
    try:
        seconds = float(str(delay))  # labels may come as texts
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise IllegalArgumentError(
            f"the label delay is {delay!r:.80}; give the seconds until the task is to run, or a timedelta"
        )
    return round(seconds * 1000) or None
