"""Hold the messages that a push consumer has popped: hide them while listeners work, and report their outcome."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from cometmq.client.instance import ClientInstance
from cometmq.client.popping.acknowledging import Acknowledgements
from cometmq.client.popping.received import Receipt
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import CometMQError, RemoteError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# The interval between two searches for messages that have to be hidden for longer.
LOOK_S: Final = 1.0
# How long an acknowledgement that no broker took waits before it is sent again, while the message is hidden.
ACK_RETRY_S: Final = 1.0
# How long messages that a closing member gives back stay hidden. By then its connection is closed;
# before, a pop of its own that still waits at the broker could take them.
RETURN_MS: Final = 1000
# With these answers a broker says that it no longer knows the handle; trying again is useless.
_FINAL: Final = frozenset(
    {ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST}
)


class _Hidden:
    """Holds until when the broker hides the messages of a batch from other members; see Lock."""

    __slots__ = ("_monotonic", "until_s")

    def __init__(self, monotonic: Callable[[], float], until_s: float) -> None:
        self._monotonic = monotonic
        self.until_s = until_s

    @property
    def valid(self) -> bool:
        return self._monotonic() < self.until_s


class Source:
    """Counts the held messages of one popped queue. A message counts until the broker has answered its outcome."""

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.last_pop_ms = 0
        self._room = asyncio.Event()

    def add(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes
        self._room.set()

    async def wait_changed(self) -> None:
        """Wait until something was added or removed."""
        self._room.clear()
        await self._room.wait()


class _Batch:
    """Holds messages that one pop took of one queue. `sizes` and `receipts` are by queue offset."""

    __slots__ = ("hidden", "process_queue", "receipts", "renewal", "sizes", "source")

    def __init__(self, source: Source, queue: MessageQueue, hidden: _Hidden) -> None:
        self.source = source
        self.hidden = hidden
        self.process_queue = ProcessQueue(queue, hidden)
        self.receipts: dict[int, Receipt] = {}
        self.sizes: dict[int, int] = {}
        self.renewal: asyncio.Task[None] | None = None

    def take(self, offset: int) -> Receipt | None:
        return self.receipts.pop(offset, None)

    def let_go(self, offsets: Iterable[int]) -> None:
        """Stop counting messages as held."""
        sizes = [self.sizes.pop(offset) for offset in offsets if offset in self.sizes]
        if sizes:
            self.source.add(-len(sizes), -sum(sizes))

    async def renewed(self) -> None:
        """Wait for a renewal under way, because it changes the handles."""
        if self.renewal is not None:
            await asyncio.wait((self.renewal,))


class HeldMessages:
    """Holds the popped messages of one member. For the loop's thread, except `process_queues`.

    Each batch is a process queue of its own; listeners may begin its messages while the batch is hidden.
    The time is renewed when half of it is over, so a slow listener sees no duplicates. Java's
    consumer does not renew.
    """

    def __init__(self, instance: ClientInstance, group: str, hidden_s: float) -> None:
        self._instance = instance
        self._group = group
        self._hidden_s = hidden_s
        self._monotonic = instance.clock.monotonic
        self._now_ms = instance.clock.now_ms
        self._acknowledgements = Acknowledgements(instance, group)
        self._owner = TaskOwner(f"popped-{group}")
        self._batches: dict[ProcessQueue, _Batch] = {}
        self._sources: defaultdict[MessageQueue, Source] = defaultdict(Source)
        # Calls to brokers that are under way.
        self._saying: set[asyncio.Task[None]] = set()

    def __contains__(self, process_queue: ProcessQueue) -> bool:
        return process_queue in self._batches

    def start(self) -> None:
        self._owner.every(LOOK_S, self._look, "hide")

    def source(self, queue: MessageQueue) -> Source:
        return self._sources[queue]

    def process_queues(self) -> list[ProcessQueue]:
        return list(self._batches)

    def sources(self) -> dict[MessageQueue, Source]:
        return self._sources

    def put(
        self, popped_from: MessageQueue, popped: Sequence[tuple[MessageExt, Receipt]]
    ) -> list[tuple[ProcessQueue, list[MessageExt]]]:
        """Hold the messages of a new answer, and return them by batch."""
        source = self._sources[popped_from]
        source.last_pop_ms = self._now_ms()
        hidden = self._monotonic() + self._hidden_s
        batches: dict[tuple[int, str], tuple[_Batch, list[MessageExt]]] = {}
        for message, receipt in popped:
            key = receipt.handle.queue_id, receipt.handle.mark
            if key not in batches:
                queue = popped_from._replace(queue_id=receipt.handle.queue_id)
                batch = _Batch(source, queue, _Hidden(self._monotonic, hidden))
                batches[key] = batch, []
            batch, messages = batches[key]
            messages.append(message)
            batch.receipts[message.queue_offset] = receipt
            batch.sizes[message.queue_offset] = len(message.body)
        for batch, messages in batches.values():
            batch.process_queue.put(messages)
            batch.process_queue.last_pull_ms = source.last_pop_ms
            self._batches[batch.process_queue] = batch
            source.add(len(messages), batch.process_queue.size_bytes)
        return [(batch.process_queue, messages) for batch, messages in batches.values()]

    def finish(self, process_queue: ProcessQueue, offsets: Sequence[int]) -> None:
        """Acknowledge messages, except those that were given back."""
        process_queue.remove(offsets)
        batch = self._batches.get(process_queue)
        if batch is None:
            return
        receipts = {
            offset: receipt for offset in offsets if (receipt := batch.take(offset)) is not None
        }
        if receipts:
            self._say(self._acknowledge(batch, receipts), "acknowledge")
        if not process_queue:
            del self._batches[process_queue]

    def acknowledge_unseen(self, receipts: Iterable[Receipt]) -> None:
        """Acknowledge messages that no listener gets, because the subscription does not select them."""
        for receipt in receipts:
            batch = _Batch(Source(), MessageQueue("", "", 0), self._hidden_for_once())
            self._say(self._acknowledge(batch, {receipt.offset: receipt}), "acknowledge")

    async def give_back(
        self, process_queue: ProcessQueue, message: MessageExt, delay_ms: int
    ) -> None:
        """Have the group get a message again after a time. Raises CometMQError."""
        batch = self._batches.get(process_queue)
        receipt = batch.take(message.queue_offset) if batch is not None else None
        if batch is None or receipt is None:
            return
        await batch.renewed()
        try:
            await self._acknowledgements.hide(receipt, delay_ms)
        except CometMQError as error:
            if isinstance(error, RemoteError) and error.code in _FINAL:
                log.info(
                    "a message could not be given back: it has already become visible again",
                    group=self._group,
                    reason=str(error),
                )
            elif process_queue in self._batches:
                batch.receipts[message.queue_offset] = receipt
                raise
        batch.let_go((message.queue_offset,))

    def give_back_unseen(self, receipts: Iterable[Receipt]) -> None:
        """Give messages that came too late for this member back to the group, to be delivered again soon."""
        for receipt in receipts:
            self._say(self._return(receipt), "give-back")

    async def close(self, running: Mapping[ProcessQueue, Collection[int]]) -> None:
        """Give back messages that no listener began, and wait for all requests under way.

        Messages at the offsets of `running` are left alone: they come again when their time is over,
        unless they were acknowledged or given back before.
        """
        for process_queue, batch in self._batches.items():
            process_queue.dropped = True
            for offset in sorted(batch.receipts.keys() - running.get(process_queue, ())):
                self._say(self._return(batch.receipts.pop(offset), batch), "give-back")
        self._batches.clear()
        while self._saying:
            await asyncio.wait(self._saying)

    async def abandon(self) -> None:
        """Send no more requests."""
        await self._owner.close()

    # Inside

    def _hidden_for_once(self) -> _Hidden:
        return _Hidden(self._monotonic, self._monotonic() + self._hidden_s)

    def _say(self, saying: Coroutine[Any, Any, None], name: str) -> None:
        # After the close the task belongs to the instance, which other clients may still use.
        owner = self._instance.tasks if self._owner.is_closed else self._owner
        task = owner.spawn(saying, name)
        self._saying.add(task)
        task.add_done_callback(self._saying.discard)

    async def _acknowledge(self, batch: _Batch, receipts: dict[int, Receipt]) -> None:
        await batch.renewed()
        waiting = list(receipts.values())
        while True:
            outcomes = await asyncio.gather(
                *map(self._acknowledgements.ack, waiting), return_exceptions=True
            )
            failed: list[Receipt] = []
            for receipt, outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, CometMQError) and not _is_final(outcome):
                    failed.append(receipt)
                elif isinstance(outcome, BaseException):
                    log.warning(
                        "a message may come again: its broker does not take the acknowledgement",
                        group=self._group,
                        topic=receipt.topic,
                        reason=str(outcome),
                    )
            if not failed or not batch.hidden.valid:
                break
            waiting = failed
            await asyncio.sleep(ACK_RETRY_S)
        batch.let_go(receipts)

    async def _return(self, receipt: Receipt, batch: _Batch | None = None) -> None:
        if batch is not None:
            await batch.renewed()
        try:
            await self._acknowledgements.hide(receipt, RETURN_MS)
        except CometMQError as error:
            log.info(
                "a message could not be given back: it comes again when its invisible time is over",
                reason=str(error),
            )

    def _look(self) -> None:
        now = self._monotonic()
        for batch in list(self._batches.values()):
            left_s = batch.hidden.until_s - now
            if left_s <= 0:
                self._expire(batch)
            elif left_s <= self._hidden_s / 2 and batch.renewal is None and batch.receipts:
                batch.renewal = self._owner.spawn(self._renew(batch), "renew")

    def _expire(self, batch: _Batch) -> None:
        log.warning(
            "messages could not be hidden for longer, and come again",
            group=self._group,
            queue=str(batch.process_queue.queue),
            offsets=sorted(batch.receipts),
        )
        # Results of listeners no longer count, and no listener begins.
        batch.process_queue.dropped = True
        batch.let_go(list(batch.receipts))
        batch.receipts.clear()
        self._batches.pop(batch.process_queue, None)

    async def _renew(self, batch: _Batch) -> None:
        try:
            asked_s = self._monotonic()
            receipts = dict(batch.receipts)
            outcomes = await asyncio.gather(
                *(
                    self._acknowledgements.hide(receipt, round(self._hidden_s * 1000))
                    for receipt in receipts.values()
                ),
                return_exceptions=True,
            )
            failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            for offset, outcome in zip(receipts, outcomes, strict=True):
                if isinstance(outcome, CometMQError) and _is_final(outcome):
                    batch.receipts.pop(offset, None)
                    batch.let_go((offset,))
            if not failures or all(map(_is_final, failures)):
                batch.hidden.until_s = asked_s + self._hidden_s
            else:
                log.info(
                    "messages could not be hidden for longer yet",
                    group=self._group,
                    queue=str(batch.process_queue.queue),
                    reason=str(failures[0]),
                )
        finally:
            batch.renewal = None


def _is_final(error: BaseException) -> bool:
    return isinstance(error, RemoteError) and error.code in _FINAL
