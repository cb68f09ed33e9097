from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.patience import be_thorough
from tests.unit.broker.broker_box import HOST, Client, running
from tests.unit.broker.delay_box import DelayBox

from cometmq.broker.server import Broker


@pytest.fixture(autouse=True, scope="module")
def queries_of_the_whole_index() -> Iterator[None]:
    """Have the module's brokers index all messages before they answer a query (`be_thorough`)."""
    with pytest.MonkeyPatch.context() as patch:
        be_thorough(patch.setattr)
        yield


@pytest.fixture
def delays(tmp_path: Path) -> Iterator[DelayBox]:
    """Yield a store with delayed messages, whose clock shows a whole second."""
    box = DelayBox(tmp_path / "store")
    yield box
    box.box.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> Client:
    """A connection to `broker`."""
    return Client(broker)


@pytest.fixture
async def operator(broker: Broker) -> Client:
    """A connection to `broker` from its own machine, as administrators have."""
    return Client(broker, host=HOST)
