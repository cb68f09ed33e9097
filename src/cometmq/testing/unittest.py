"""Provide test cases for unittest: a cluster in virtual time, or a broker over real sockets.

class Billing(VirtualTestCase):
    async def test_an_order_is_billed(self):
        async with Producer("shop", namesrv=self.cluster.namesrv) as producer: ...
        await self.cluster.wait_consumed("billing")

class Sending(BrokerTestCase):
    def test_an_order_is_stored(self):
        with Producer("shop", namesrv=self.broker.namesrv) as producer: ...
        self.broker.messages("orders", 1)
"""

from __future__ import annotations

import functools
import inspect
import unittest
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, TypeVar

from cometmq.testing.cluster import Cluster
from cometmq.testing.local_broker import LocalBroker, LocalBrokers

T = TypeVar("T")


class VirtualTestCase(unittest.TestCase):
    """Gives each test a cluster in virtual time as `self.cluster`, and runs `async def` tests on it.

    `asyncSetUp` and `asyncTearDown` run on its loop, too. `cluster_options` are those of `Cluster`,
    such as `{"brokers": 2, "seed": 7}`. Subclasses that have a `setUp` call this one first.
    """

    cluster_options: ClassVar[Mapping[str, Any]] = {}

    cluster: Cluster
    # A test that failed has left open what it did not come to close: a report of that would only add
    # noise.
    _failure: BaseException | None = None

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803 - unittest's name
        super().__init__(methodName)
        test = getattr(self, methodName, None)
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            def run() -> None:
                try:
                    self.cluster.run(test())
                except BaseException as error:
                    self._failure = error
                    raise

            setattr(self, methodName, run)

    def setUp(self) -> None:
        self.cluster = Cluster(clock="virtual", **self.cluster_options).__enter__()
        self.addCleanup(lambda: self.cluster.__exit__(None, self._failure, None))
        self.cluster.run(self.asyncSetUp())
        self.addCleanup(lambda: self.cluster.run(self.asyncTearDown()))

    async def asyncSetUp(self) -> None:
        """Prepare a test on the cluster's loop."""

    async def asyncTearDown(self) -> None:
        """Clean up on the cluster's loop, if `asyncSetUp` has succeeded."""

    async def enterAsyncContext(  # noqa: N802 - the name in unittest
        self, context: AbstractAsyncContextManager[T]
    ) -> T:
        """Enter `context` in a test or in `asyncSetUp`, and leave it after the test."""
        entered = await context.__aenter__()

        async def leave() -> None:
            await context.__aexit__(None, None, None)

        self.addCleanup(lambda: self.cluster.run(leave()))
        return entered


class BrokerTestCase(unittest.TestCase):
    """Gives each test a broker over real sockets, with an empty store, as `self.broker`.

    `broker_properties` are entries of its configuration. Subclasses that have a `setUp` call this one
    first; those that have a `setUpClass`, too.
    """

    broker_properties: ClassVar[Mapping[str, str]] = {}

    broker: LocalBroker
    _brokers: ClassVar[LocalBrokers]

    @classmethod
    def setUpClass(cls) -> None:
        cls._brokers = cls.enterClassContext(LocalBrokers())

    def setUp(self) -> None:
        self.broker = self.enterContext(self._brokers.fresh(self.broker_properties))
