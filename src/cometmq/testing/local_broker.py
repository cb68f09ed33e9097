"""Give each test a fresh broker over real sockets, all in this process and on one loop thread.

    with LocalBrokers() as brokers:
        with brokers.fresh() as broker:
            with Producer("shop", namesrv=broker.namesrv) as producer: ...
            [order] = broker.messages("orders", 1)

The fixture `cometmq_broker` and `BrokerTestCase` are made of it. A fresh broker is a new `Cluster` with
a name server of its own, so nothing of one test reaches the next: no topic, offset or connection. Its
files lie in memory where the machine has a directory there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from cometmq.broker.server import Broker
from cometmq.errors import ClientStateError
from cometmq.model.message import MessageExt
from cometmq.runtime.portal import LoopThread
from cometmq.runtime.surroundings import current
from cometmq.testing.assertions import WITHIN_S
from cometmq.testing.cluster import Cluster

T = TypeVar("T")

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the files get a directory of their own
_ROOM_BYTES: Final = 1 << 30  # a store begins with 32 MiB


class LocalBroker:
    """Is the broker of one test. Its calls are those of `Cluster`, but block."""

    def __init__(self, cluster: Cluster, thread: LoopThread) -> None:
        self._cluster = cluster
        self._thread = thread
        # The port of the proxy, once there was one, and the broker that it is beside.
        self._proxy_port = 0
        self._broker_of_proxy: Broker | None = None

    @property
    def namesrv(self) -> str:
        """The name server's address, as clients take it."""
        return self._cluster.namesrv

    @property
    def address(self) -> str:
        """The broker's own address."""
        return self._cluster.brokers[0].address

    @property
    def endpoint(self) -> str:
        """The endpoint of a proxy in the broker's process, for the gRPC clients of RocketMQ 5, without TLS.

        The first use starts it; after `start` or `restart` the next use starts it again, at the same port. Raises
        ImportError if the extra `proxy` is not installed.
        """
        return self._call(self._start_proxy())

    def messages(
        self, topic: str, count: int | None = None, *, within_s: float = WITHIN_S
    ) -> list[MessageExt]:
        return self._call(self._cluster.messages(topic, count, within_s=within_s))

    def dead_letters(
        self, group: str, count: int | None = None, *, within_s: float = WITHIN_S
    ) -> list[MessageExt]:
        return self._call(self._cluster.dead_letters(group, count, within_s=within_s))

    def lag(self, group: str, topic: str | None = None) -> int:
        return self._call(self._cluster.lag(group, topic))

    def wait_consumed(
        self, group: str, topic: str | None = None, *, within_s: float = WITHIN_S
    ) -> None:
        self._call(self._cluster.wait_consumed(group, topic, within_s=within_s))

    def stop(self) -> None:
        """Stop the broker cleanly; the name server goes on, `start` brings the broker back."""
        self._call(self._cluster.stop_broker(0))

    def start(self) -> None:
        """Start the stopped broker again, with its store and on its port."""
        self._call(self._cluster.start_broker(0))

    def restart(self) -> None:
        self._call(self._cluster.restart_broker(0))

    async def _start_proxy(self) -> str:
        from cometmq.proxy.configuration.config import ProxyConfig
        from cometmq.proxy.local import LocalProxy

        broker = self._cluster.brokers[0]
        if self._broker_of_proxy is not broker:
            local = LocalProxy(broker, ProxyConfig([], port=self._proxy_port))
            await local.start()
            self._proxy_port, self._broker_of_proxy = local.proxy.port, broker
        return f"127.0.0.1:{self._proxy_port}"

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        __tracebackhide__ = True  # pytest shows the test's line, not this one
        if current().is_virtual:
            coroutine.close()
            raise ClientStateError(
                "the broker over real sockets was called in virtual time, which it would hold up; call it "
                "outside of coroutines that run there, or use the cluster in virtual time for all"
            )
        return self._thread.call(coroutine)


class LocalBrokers:
    """Keeps the loop thread of all brokers of a test run; the thread starts with the first broker."""

    def __init__(self) -> None:
        self._thread = LoopThread("cometmq-broker")
        self._starting = threading.Lock()

    @contextmanager
    def fresh(self, properties: Mapping[str, str] | None = None) -> Iterator[LocalBroker]:
        """Start a broker with an empty store; stop it and remove its files at the end."""
        with self._starting:
            if not self._thread.running:
                self._thread.start()
        with tempfile.TemporaryDirectory(
            prefix="cometmq-", dir=_memory(), ignore_cleanup_errors=True
        ) as directory:
            cluster = Cluster(properties=properties, directory=Path(directory))
            self._thread.call(cluster.start())
            try:
                yield LocalBroker(cluster, self._thread)
            finally:
                self._thread.call(cluster.stop())

    def close(self) -> None:
        """End the loop thread, if there is one."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _memory() -> Path | None:
    """Return a directory in memory if there is one with room, where no test waits for a disk."""
    try:
        has_room = shutil.disk_usage(_IN_MEMORY).free >= _ROOM_BYTES
    except OSError:
        return None
    return _IN_MEMORY if has_room and os.access(_IN_MEMORY, os.W_OK) else None
