"""Runs nodes of a cluster in virtual time, in one thread, from one seed."""

from cometmq.testing.virtual.loop import (
    BlockingCallError,
    DeadlockError,
    LeftBehindError,
    VirtualLoop,
    run,
)
from cometmq.testing.virtual.node import Node, NodeKilledError
from cometmq.testing.virtual.world import World

__all__ = [
    "BlockingCallError",
    "DeadlockError",
    "LeftBehindError",
    "Node",
    "NodeKilledError",
    "VirtualLoop",
    "World",
    "run",
]
