"""Inspect and manage clusters; `AdminClient` is for asyncio, `cometmq.AdminClient` blocks."""

from cometmq.admin.client import AdminClient

__all__ = ["AdminClient"]
