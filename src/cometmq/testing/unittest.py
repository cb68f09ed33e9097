"""Provides test cases for unittest: a cluster in virtual time, or a broker over real sockets.

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

import unittest


class VirtualTestCase(unittest.TestCase):
    """Gives each test a cluster in virtual time as `self.cluster`, and runs `async def` tests on it.

    `asyncSetUp` and `asyncTearDown` run there, too. `cluster_options` are those of `Cluster`.
    """


class BrokerTestCase(unittest.TestCase):
    """Gives each test a broker over real sockets, with a fresh store, as `self.broker`."""
