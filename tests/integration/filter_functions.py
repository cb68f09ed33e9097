"""Functions that the brokers of test_predicates.py name in filterPredicateModules."""

from __future__ import annotations

import threading
import time

from cometmq import MessageExt

slow = threading.Event()


def is_paid(message: MessageExt) -> bool:
    return message.tags == "paid" and message.body.startswith(b"order")


def fails(message: MessageExt) -> bool:
    raise ValueError(f"no idea what {message.body!r} is")


def dawdles(_message: MessageExt) -> bool:
    if slow.is_set():
        time.sleep(0.25)
    return True


async def waits(_message: MessageExt) -> bool:
    return True


NOTHING = None
