"""`cometmq.testing.unittest`: its test cases, run by unittest's own runner."""

# ruff: noqa: PT009, PT027 - the cases are written as users of unittest write theirs

from __future__ import annotations

import asyncio
import io
import threading
import unittest
from collections.abc import Iterator

import pytest
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.aio import Producer as AsyncProducer
from cometmq.testing.unittest import BrokerTestCase, VirtualTestCase


def outcome(case: type[unittest.TestCase]) -> tuple[unittest.TestResult, str]:
    output = io.StringIO()
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    return unittest.TextTestRunner(output, verbosity=2).run(tests), output.getvalue()


# In a function, for pytest would run classes of the module, too.


def virtual_case(torn_down_at: list[float]) -> type[VirtualTestCase]:
    class Orders(VirtualTestCase):
        cluster_options = {"brokers": 2, "seed": 7}  # noqa: RUF012 - as a user writes it

        async def asyncSetUp(self) -> None:
            self.producer = await self.enterAsyncContext(
                AsyncProducer("shop", namesrv=self.cluster.namesrv)
            )

        async def asyncTearDown(self) -> None:
            torn_down_at.append(asyncio.get_running_loop().time())

        async def test_an_hour(self) -> None:
            self.assertEqual(len(self.cluster.brokers), 2)
            await asyncio.sleep(100)
            await self.producer.send(Message("orders", b"x"))
            await self.cluster.messages("orders", 1)

        async def test_that_fails(self) -> None:
            await self.cluster.messages("orders", 1, within_s=5)

        def test_that_is_plain(self) -> None:
            self.assertEqual(self.cluster.run(self.cluster.messages("orders")), [])

    return Orders


def broker_case() -> type[BrokerTestCase]:
    class Orders(BrokerTestCase):
        broker_properties = {"defaultTopicQueueNums": "2"}  # noqa: RUF012 - as a user writes it

        def setUp(self) -> None:
            super().setUp()
            self.producer = self.enterContext(Producer("shop", namesrv=self.broker.namesrv))

        def test_it(self) -> None:
            self.assertEqual(self.broker.messages("orders"), [])
            for _ in range(4):
                self.producer.send(Message("orders", b"x"))
            stored = self.broker.messages("orders", 4)
            self.assertEqual({message.queue_id for message in stored}, {0, 1})

        test_it_again = test_it

        def test_a_broker_that_was_away(self) -> None:
            self.producer.send(Message("orders", b"before"))
            self.broker.stop()
            self.broker.start()
            self.broker.restart()
            self.producer.send(Message("orders", b"after"), timeout_ms=SEND_WAIT_MS)
            bodies = [message.body for message in self.broker.messages("orders", 2)]
            self.assertEqual(bodies, [b"before", b"after"])
            with self.assertRaisesRegex(AssertionError, "topic orders has 2 messages, and 1 are"):
                self.broker.messages("orders", 1)

    return Orders


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = threading.enumerate()  # maybe a broker of the whole session
    yield
    left = [one for one in threading.enumerate() if one.name == "cometmq-broker"]
    assert not set(left).difference(before)


def test_async_tests_of_a_case_run_in_virtual_time() -> None:
    torn_down_at: list[float] = []
    result, output = outcome(virtual_case(torn_down_at))
    assert result.testsRun == 3, output
    assert not result.errors, output
    [(test, text)] = result.failures
    assert "test_that_fails" in test.id()
    assert "topic orders has 0 messages after 5 s, and 1 are expected" in text
    # Beside what the tests wait for, answers take a moment.
    assert [int(at) for at in torn_down_at] == [100, 5, 0]


def test_each_test_of_a_case_has_a_fresh_broker() -> None:
    result, output = outcome(broker_case())
    assert result.testsRun == 3, output
    assert result.wasSuccessful(), output
