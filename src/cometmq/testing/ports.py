"""Offer the ports that tests of users hold for their servers."""

from cometmq.runtime.sockets.ports import HeldPort

__all__ = ["HeldPort"]
