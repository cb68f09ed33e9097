"""Client ids, by which brokers know a client."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

import cometmq.aio
from cometmq import ConsumeResult
from cometmq.client.identity import client_id
from cometmq.client.lifecycle import AsyncClient
from cometmq.runtime.randomness import Randomness

# The clients connect to a port where nobody listens.
pytestmark = pytest.mark.real_time

NOBODY = "127.0.0.1:1"


def test_a_named_instance_has_its_name() -> None:
    assert client_id("10.0.0.1", "billing") == "10.0.0.1@billing"
    assert client_id("10.0.0.1", "billing", "unit-1") == "10.0.0.1@billing@unit-1"


def test_the_default_instance_is_process_and_number() -> None:
    first, second = (client_id("10.0.0.1", "DEFAULT", "u") for _ in range(2))
    assert re.fullmatch(rf"10\.0\.0\.1@{os.getpid()}#\d+@u", first)
    assert first != second


def test_the_number_of_a_default_instance_comes_from_the_seed() -> None:
    first, again, other = (
        client_id("10.0.0.1", "DEFAULT", randomness=Randomness(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_an_id_that_must_stay_keeps_the_default_name() -> None:
    assert client_id("10.0.0.1", "DEFAULT", unique=False) == "10.0.0.1@DEFAULT"


@pytest.mark.parametrize("unit", [None, "unit-1"])
async def test_all_clients_of_one_id_share_one_instance(unit: str | None) -> None:
    options: Any = {"namesrv": NOBODY, "instance_name": "one", "unit_name": unit}
    consumer = cometmq.aio.PushConsumer("g", lambda _: ConsumeResult.SUCCESS, **options)
    consumer.subscribe("t")
    producer = cometmq.aio.Producer("g", **options)
    lite = cometmq.aio.LitePullConsumer("h", **options)
    clients: list[AsyncClient] = [producer, lite, consumer]
    for client in clients:
        await client.start()
    assert len({id(client.check_started()) for client in clients}) == 1
    assert len({client.client_id for client in clients}) == 1
    for client in clients:
        await client.close()
