"""Offers the ports that tests of users hold for their servers."""

from cometmq.runtime.ports import HeldPort

__all__ = ["HeldPort"]
