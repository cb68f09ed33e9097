"""Find the queues that may be sent to, and where their logs end."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from cometmq.client.range_reader import RangeReader
from cometmq.errors import CometMQError, ConfigError, RemotingError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.runtime.portal import LoopThread
from cometmq.spark.connecting import CONNECTING, Connecting
from cometmq.spark.options import Options

T = TypeVar("T")


def connecting_to(cluster: ClusterConfig) -> Connecting:
    """Return how workers connect to the cluster. Raise ConfigError for a table that does not
    fit.
    """
    try:
        return Connecting(Options("rocketmq", cluster.options(), CONNECTING))
    except ConfigError:
        raise
    except CometMQError as error:
        raise ConfigError(f"[cluster]: {error}") from error


class TargetReader(RangeReader):
    """A range reader that also finds the queues that may be written to."""

    async def writable(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of `topic`, sorted. Raise RouteNotFoundError when no name
        server knows it.
        """
        routes = self._running().routes
        wire = self._namespace.wrap(topic)
        await routes.refresh(wire)
        found = routes.publish_route(wire)
        queues = found.queues if found is not None else []
        return sorted(self._namespace.unwrap_queue(queue) for queue in queues)

    async def first_offsets(
        self, queues: Sequence[MessageQueue], since_ms: int | None
    ) -> list[int]:
        """Return an offset for each queue before which no message is of `since_ms` or later;
        without a time, the queue's end.
        """
        if since_ms is None:
            found = await self.offsets(queues)
            return [found[queue][1] for queue in queues]
        # Asked for the millisecond before: of several messages of one millisecond, brokers name
        # any.
        offsets = await self.offsets_for_timestamp(queues, max(0, since_ms - 1))
        return [offsets[queue] for queue in queues]


def writable_queues(connecting: Connecting, topics: Iterable[str]) -> dict[str, list[MessageQueue]]:
    """Return the queues of each topic, none for a topic that does not exist.

    Raise ConfigError when no name server answers.
    """

    async def ask() -> dict[str, list[MessageQueue]]:
        queues: dict[str, list[MessageQueue]] = {}
        async with TargetReader(**connecting.parameters()) as reader:
            for topic in sorted(set(topics)):
                try:
                    queues[topic] = await reader.writable(topic)
                except RouteNotFoundError:
                    queues[topic] = []
                except RemotingError as error:
                    raise ConfigError(
                        f"[cluster]: no name server of {connecting.namesrv} answers: {error}; see that "
                        "namesrv is right and that this machine can connect there"
                    ) from error
        return queues

    return _run(ask())


def ends_of(
    connecting: Connecting, queues: Sequence[MessageQueue], since_ms: int | None = None
) -> list[int]:
    """Return `TargetReader.first_offsets` of these queues. Raise CometMQError."""

    async def ask() -> list[int]:
        async with TargetReader(**connecting.parameters()) as reader:
            return await reader.first_offsets(queues, since_ms)

    return _run(ask())


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, since the caller (a notebook) may have a running
    loop.
    """
    thread = LoopThread("cometmq-targets")
    thread.start()
    try:
        return thread.call(work)
    finally:
        thread.stop()
