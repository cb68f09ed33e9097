"""A function listener of an orderly consumer: which calls wait for the loop, and which do not."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

from cometmq.client.consuming.listeners.orderly import OrderlyConsumption, _marking
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.runtime.portal import LoopThread


def test_only_the_call_for_which_a_function_waits_is_held_by_its_listener() -> None:
    queue, message = MessageQueue("orders", "a", 0), cast("MessageExt", object())
    worker = SimpleNamespace(job=SimpleNamespace(messages=[message]))
    consumption = cast("Any", SimpleNamespace(_workers={queue: worker}))
    loop_thread = LoopThread()
    loop_thread.start()
    found: list[bool] = []

    async def is_held() -> bool:
        return OrderlyConsumption.held_by_caller(consumption, queue)

    async def running_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def listen(_messages: list[MessageExt]) -> None:
        found.append(loop_thread.call(is_held()))
        found.append(asyncio.run_coroutine_threadsafe(is_held(), loop).result())

    try:
        loop = loop_thread.call(running_loop())
        listener = threading.Thread(target=_marking(cast("Any", listen)), args=([message],))
        listener.start()
        listener.join()
    finally:
        loop_thread.stop()
    assert found == [True, False]
