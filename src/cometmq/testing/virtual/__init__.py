"""Run nodes of a cluster in virtual time, in one thread, from one seed."""

from cometmq.testing.virtual.errors import (
    BlockingCallError,
    DeadlockError,
    LeftBehindError,
    NodeKilledError,
)
from cometmq.testing.virtual.loop import VirtualLoop, run
from cometmq.testing.virtual.node import Node
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
