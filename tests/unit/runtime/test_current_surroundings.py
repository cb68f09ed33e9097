"""An object that is given no clock, network, … uses those of the code that makes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from tests.waits import PROCESS_WAIT_S

import cometmq
from cometmq.aio import Producer
from cometmq.client.identity import client_id
from cometmq.errors import ClientStateError
from cometmq.idempotent import KeyState, MemoryStore
from cometmq.runtime.surroundings import MACHINE, current
from cometmq.testing import virtual


def test_code_on_no_node_has_the_machine() -> None:
    assert current() is MACHINE
    assert not current().is_virtual


def test_code_on_a_node_has_its_surroundings() -> None:
    async def main() -> None:
        node = virtual.World.current().node("app-1")
        assert current() is virtual.World.current().node("main").surroundings
        with node:
            assert current() is node.surroundings
        assert await node.run_in(surroundings()) is node.surroundings

    async def surroundings() -> object:
        return current()

    virtual.run(main())
    assert current() is MACHINE


def test_client_ids_name_the_process_of_the_node() -> None:
    async def main() -> list[str]:
        return [client_id("10.0.0.1", "DEFAULT").split("#")[0] for _ in range(2)]

    assert virtual.run(main()) == ["10.0.0.1@1"] * 2
    assert client_id("10.0.0.1", "DEFAULT").split("#")[0] != "10.0.0.1@1"


def test_keys_expire_in_the_time_of_their_node() -> None:
    async def main() -> list[KeyState]:
        store = MemoryStore(keep_s=3600)
        store.finish("a", store.begin("a", 60).token)
        states = [store.begin("a", 60).state]
        await asyncio.sleep(7200)
        return [*states, store.begin("a", 60).state]

    assert virtual.run(main()) == [KeyState.DONE, KeyState.FREE]


def test_a_blocking_client_is_refused_with_a_sentence() -> None:
    async def main() -> None:
        Producer("g", namesrv="10.0.0.2:9876")  # the asyncio one is not
        with pytest.raises(ClientStateError, match=r"use cometmq\.aio\.Producer"):
            cometmq.Producer("g", namesrv="10.0.0.2:9876")
        with pytest.raises(ClientStateError, match=r"use cometmq\.aio\.AdminClient"):
            cometmq.AdminClient("10.0.0.2:9876")

    virtual.run(main())


def test_clients_do_not_import_virtual_time() -> None:
    program = (
        "import sys, cometmq, cometmq.aio, cometmq.client.producing.producer; "
        "sys.exit('cometmq.testing' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROCESS_WAIT_S)
