"""Give clients and brokers of this process as much time as a busy machine needs for an answer.

Tests do this to their own process, and to the processes in which they run a page's programs. Tests that
look for a client's periodic reports make these come soon.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tests.waits import SEND_WAIT_MS, WAIT_S

from cometmq.admin.client import AdminOptions
from cometmq.broker.storage import indexing
from cometmq.client.cluster import broker_api, namesrv_api
from cometmq.client.consuming import push_member
from cometmq.client.consuming.listeners import send_back
from cometmq.client.membership import membership
from cometmq.client.producing.producer import ProducerOptions
from cometmq.client.producing.transaction_producer import TransactionProducerOptions
from cometmq.client.tracing import dispatcher
from cometmq.remoting import client

_TIMEOUTS_S = (
    (membership, "START_TIMEOUT_S"),
    (namesrv_api, "ASK_TIMEOUT_S"),
    (broker_api, "SEND_BACK_TIMEOUT_S"),
    (broker_api, "LOCK_TIMEOUT_S"),
    (send_back, "SEND_TIMEOUT_S"),
    (dispatcher, "SEND_TIMEOUT_S"),
)
_OPTIONS = (
    (ProducerOptions, "send_timeout_ms"),
    (TransactionProducerOptions, "send_timeout_ms"),
    (AdminOptions, "timeout_ms"),
)


def be_patient(
    set_attribute: Callable[[Any, str, Any], None] = setattr,
    set_item: Callable[[dict[str, Any], str, Any], None] = operator.setitem,
) -> None:
    """Have consumers joined their group when `start` returns, and committed when `close` does, and
    have every send, every call of the administration client, every request for a route and every
    message that is sent back wait for its answer, and every client for its connections.

    Otherwise whatever takes longer than a few seconds would be done in the background, done once
    more, or given up. The first message of a topic waits for the disk, for example, and other
    processes may keep that busy for seconds.
    """
    for module, name in _TIMEOUTS_S:
        set_attribute(module, name, WAIT_S)
    # A part of what a send has, which may find one server gone before it finds another.
    set_attribute(client, "CONNECT_TIMEOUT_S", WAIT_S / 4)
    for options, name in _OPTIONS:
        # The values of options that are not given, as the class's constructor keeps them.
        set_item(vars(options)["__init__"].__kwdefaults__, name, SEND_WAIT_MS)


def be_thorough(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Have brokers of this process index all their messages before they answer a query.

    By default a broker indexes for a second at most. A busy machine may need longer, and then the answer
    lacks the newest messages.
    """
    set_attribute(indexing, "_CATCH_UP_LIMIT_S", WAIT_S)


# Stands for the five seconds between two commits, or two loads of traces.
SOON_S = 0.05


def be_prompt(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Have push consumers commit, and all clients send their traces, in a moment."""
    set_attribute(push_member, "PERSIST_INTERVAL_S", SOON_S)
    set_attribute(dispatcher, "FLUSH_INTERVAL_S", SOON_S)
    set_attribute(dispatcher, "LOOK_INTERVAL_S", SOON_S)
