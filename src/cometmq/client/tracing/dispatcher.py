"""Send clients' traces in the background (Java: AsyncTraceDispatcher).

A client only appends its events to a bounded list, and never waits. An event that finds the list
full is dropped and counted. A task sends the events, several in a message, under a producer group
and a client instance that serve only traces.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.limits import MessageChecks
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.client.tracing.codec import TraceContext, encode_trace
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.model.names import TRACE_TOPIC
from cometmq.remoting.hooks import RpcHook
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
BATCH_NUM: Final = 10
CAPACITY: Final = 2048
MAX_BODY_BYTES: Final = 128_000
# The properties of a message take 32,767 bytes at most, and the keys are one of them.
MAX_KEYS_BYTES: Final = 30_000
FLUSH_INTERVAL_S: Final = 5.0
SEND_TIMEOUT_S: Final = 5.0
# The interval at which the task looks at the list, and the length at which it looks at once.
LOOK_INTERVAL_S: Final = 0.5
_WAKE_AT: Final = CAPACITY // 4
_numbers = itertools.count(1)


class TraceDispatcher:
    """Sends the traces of one client over `instance`, which only dispatchers use. `kind` is PRODUCE
    or CONSUME.

    `append` may be called from any thread, all else on the loop.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        kind: str,
        *,
        topic: str | None = None,
        rpc_hooks: Sequence[RpcHook] = (),
    ) -> None:
        self.topic = topic or TRACE_TOPIC
        self.dropped = 0
        self._group = f"{GROUP_PREFIX}-{group}-{kind}-{next(_numbers)}"
        self._rpc_hooks = list(rpc_hooks)
        self._contexts: deque[TraceContext] = deque()
        self._owner = TaskOwner(f"trace-{group}")
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._flushed_at_s = self._loop.time()
        self._logged_dropped = 0
        self._lost = 0  # events since the last trace that was sent
        self._instance = instance
        self.clock = instance.clock
        self.randomness = instance.randomness
        self._sender = Sender(instance, SendLimits())
        self._encoder = MessageEncoder(self._group, instance.unique_ids, clock=instance.clock)
        self._flushing = asyncio.Lock()

    def start(self) -> None:
        for hook in self._rpc_hooks:
            self._instance.remoting.rpc_hooks.add(hook)
        self._instance.add_producer(self._group)
        self._owner.spawn(self._run(), "send")

    async def close(self) -> None:
        """Send the events that are left, as far as the send timeout allows."""
        await self.flush()
        await self._owner.close()
        for hook in self._rpc_hooks:
            self._instance.remoting.rpc_hooks.remove(hook)
        await self._instance.remove_producer(self._group)

    def append(self, context: TraceContext) -> bool:
        """Add an event. Return False when there was no room for it."""
        count = len(self._contexts)
        if count >= CAPACITY:
            self.dropped += 1
            return False
        self._contexts.append(context)
        if count == _WAKE_AT:
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                log.debug("the loop is closed, a trace is lost", group=self._group)
        return True

    async def flush(self) -> None:
        """Send all events of the list and wait for the outcome, which is only logged."""
        async with self._flushing:
            self._flushed_at_s = self._loop.time()
            batches = self._take()
            if batches:
                await asyncio.gather(*(self._send(batch) for batch in batches))
        if self.dropped != self._logged_dropped:
            log.warning(
                "traces were dropped, they came faster than they could be sent",
                group=self._group,
                dropped=self.dropped - self._logged_dropped,
                limit=CAPACITY,
            )
            self._logged_dropped = self.dropped

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            overdue = self._loop.time() - self._flushed_at_s >= FLUSH_INTERVAL_S
            if len(self._contexts) >= BATCH_NUM or (self._contexts and overdue):
                await self.flush()

    def _take(self) -> list[list[TraceContext]]:
        """Empty the list. Return its events in batches, each of one topic and for one message."""
        filling: dict[str | None, _Batch] = {}
        full = []
        for _ in range(len(self._contexts)):
            context = self._contexts.popleft()
            topic = context.beans[0].topic
            batch = filling.get(topic)
            if batch is not None and not batch.add(context):
                full.append(batch.contexts)
                batch = None
            if batch is None:
                batch = filling[topic] = _Batch(context)
        return [*full, *(batch.contexts for batch in filling.values())]

    async def _send(self, batch: list[TraceContext]) -> None:
        keys = _fitting(set().union(*(context.keys for context in batch)))
        body = "".join(map(encode_trace, batch)).encode()
        message = Message(self.topic, body, properties={p.KEYS: p.KEY_SEPARATOR.join(keys)})
        try:
            MessageChecks().check(message)
            await self._sender.send(await self._encoder.encode(message), SEND_TIMEOUT_S)
        except CometMQError as error:
            # A refusal applies to all further traces: one warning, and one line when it is over.
            (log.debug if self._lost else log.warning)(
                "traces could not be sent; further losses are not logged until one is sent",
                group=self._group,
                topic=self.topic,
                events=len(batch),
                reason=str(error),
            )
            self._lost += len(batch)
        else:
            if self._lost:
                log.warning(
                    "traces were lost; the next ones can be sent again",
                    group=self._group,
                    topic=self.topic,
                    lost=self._lost,
                )
                self._lost = 0


class _Batch:
    """Collects events for one message, at least one."""

    def __init__(self, context: TraceContext) -> None:
        self.contexts = [context]
        self._body, self._keys = _sizes(context)

    def add(self, context: TraceContext) -> bool:
        """Add an event. Return False when there was no room for it."""
        body, keys = _sizes(context)
        self._body += body
        self._keys += keys
        room = self._body <= MAX_BODY_BYTES and self._keys <= MAX_KEYS_BYTES
        if room and len(self.contexts) < BATCH_NUM:
            self.contexts.append(context)
            return True
        return False


def _fitting(keys: set[str]) -> list[str]:
    """Return the keys that a message has room for. One batch of messages may have too many; then
    its trace is found by the ids of some.
    """
    room, fitting = MAX_KEYS_BYTES, []
    for key in sorted(keys):
        room -= len(key.encode()) + 1
        if room < 0:
            break
        fitting.append(key)
    return fitting


def _sizes(context: TraceContext) -> tuple[int, int]:
    """Return the bytes that an event takes in a message's body, and those in its keys."""
    keys = sum(len(key.encode()) + 1 for key in context.keys)
    return len(encode_trace(context).encode()), keys


def trace_instance_name(namesrv: Sequence[str], *, alone: bool = False) -> str:
    """Return the instance name that a process's dispatchers for these name servers share.

    With `alone` return a new name, which no other dispatcher has.
    """
    name = f"PID_CLIENT_INNER_TRACE_PRODUCER_{';'.join(namesrv)}"
    return f"{name}_{next(_numbers)}" if alone else name
