"""Provide the base of the blocking producers and consumers."""

from __future__ import annotations

from cometmq.client.blocking.face import BlockingFace
from cometmq.client.hooks import Hook
from cometmq.client.lifecycle import AsyncClient, ClientLoad


class BlockingClient(BlockingFace, of=AsyncClient):
    """Is the base of the blocking producers and consumers."""

    def __init__(self, asynchronous: AsyncClient) -> None:
        super().__init__(asynchronous)
        self._member = asynchronous

    @property
    def group(self) -> str:
        return self._member.group

    @property
    def client_id(self) -> str:
        return self._member.client_id

    def load(self) -> ClientLoad:
        return self._member.load()

    def add_hook(self, hook: Hook) -> None:
        self._apply(self._member.add_hook, hook)
