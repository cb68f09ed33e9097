"""Test hours of the service in seconds: the application and the consumer, with a cluster in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cometmq import Message
from cometmq.aio import Producer
from cometmq.testing import Cluster

from .api import create_app
from .billing import billing
from .ledger import LIMIT_CENTS, Ledger
from .orders import GROUP, TOPIC
from .settings import Settings


@pytest.fixture
def settings(cometmq_cluster: Cluster, tmp_path: Path) -> Settings:
    return Settings(cometmq_cluster.namesrv, str(tmp_path), retries=3)


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://orders", timeout=60
        ) as client,
    ):
        yield client


@pytest.fixture
async def charges(settings: Settings, tmp_path: Path) -> AsyncIterator[Ledger]:
    """Run billing; return its ledger."""
    with billing(settings) as consumer, Ledger(tmp_path / "ledger.db") as ledger:
        async with consumer:
            yield ledger


def order(number: str, cents: int = 240) -> dict[str, object]:
    return {"id": number, "customer": "C-1", "cents": cents}


async def test_an_order_is_charged(
    cometmq_cluster: Cluster, http: httpx.AsyncClient, charges: Ledger
) -> None:
    taken = await http.post("/orders", json=order("O-1"))
    assert taken.status_code == 202
    [message] = await cometmq_cluster.messages(TOPIC, 1)
    assert taken.json() == {"id": "O-1", "message": message.msg_id}
    await cometmq_cluster.wait_consumed(GROUP)
    assert charges.charged() == ["O-1"]


async def test_an_order_that_is_sent_twice_is_charged_once(
    cometmq_cluster: Cluster, http: httpx.AsyncClient, charges: Ledger
) -> None:
    for _ in range(2):
        await http.post("/orders", json=order("O-1"))
    await cometmq_cluster.messages(TOPIC, 2)
    await cometmq_cluster.wait_consumed(GROUP)
    assert charges.charged() == ["O-1"]


async def test_an_order_that_is_none_is_refused(
    cometmq_cluster: Cluster, http: httpx.AsyncClient
) -> None:
    assert (await http.post("/orders", json=order("O-1", cents=0))).status_code == 422
    assert await cometmq_cluster.messages(TOPIC) == []


async def test_a_refused_charge_is_tried_again_and_becomes_a_dead_letter_with_its_cause(
    cometmq_cluster: Cluster, http: httpx.AsyncClient, charges: Ledger
) -> None:
    await http.post("/orders", json=order("O-1", cents=LIMIT_CENTS + 1))
    await http.post("/orders", json=order("O-2"))
    [letter] = await cometmq_cluster.dead_letters(GROUP, 1, within_s=3600)
    assert (letter.keys, letter.origin_topic) == (("O-1",), TOPIC)
    assert letter.failure is not None
    assert letter.failure.type == "ChargeRefusedError"
    assert "the limit of a charge" in letter.failure.text
    assert charges.charged() == ["O-2"]  # the second order did not wait for the first one


@pytest.mark.usefixtures("charges")
async def test_a_body_that_is_no_order_is_a_dead_letter_at_once(cometmq_cluster: Cluster) -> None:
    async with Producer("another-shop", namesrv=cometmq_cluster.namesrv) as producer:
        await producer.send(Message(TOPIC, b'{"id": "O-1"}', keys="O-1"))
    [letter] = await cometmq_cluster.dead_letters(GROUP, 1)
    assert letter.failure is not None
    assert letter.failure.type == "UndecodableError"
    assert letter.reconsume_times == 1  # the only delivery


async def test_orders_outlive_a_broker(
    cometmq_cluster: Cluster, http: httpx.AsyncClient, charges: Ledger
) -> None:
    await http.post("/orders", json=order("O-1"))
    cometmq_cluster.kill("broker-a")
    away = await http.post("/orders", json=order("O-2"))
    assert (away.status_code, away.headers["Retry-After"]) == (503, "1")
    await cometmq_cluster.restart("broker-a")
    assert (await http.post("/orders", json=order("O-2"))).status_code == 202
    await cometmq_cluster.wait_consumed(GROUP)
    assert sorted(charges.charged()) == ["O-1", "O-2"]
