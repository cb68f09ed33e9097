"""Serve pulls, and hold those that wait."""

from __future__ import annotations

from cometmq.broker.parts import Parts, Service
from cometmq.broker.pulls.pull import PullHandler
from cometmq.broker.traffic import Traffic


class Pulls(Service):
    """Serves pulls. `traffic` counts what they take."""

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._parts = parts
        self._handler = PullHandler(parts, traffic)

    async def open(self) -> None:
        parts = self._parts
        parts.topics.on_remove.append(parts.waiting.release_topic)
        parts.clients.on_taken_in.append(parts.waiting.heard)
        parts.store.on_settings_changed.append(self._obey_settings)
        self._handler.register(parts.handlers)

    def close(self) -> None:
        self._parts.waiting.close()

    def _obey_settings(self) -> None:
        config = self._parts.config
        self._parts.waiting.set_limits(config.max_held_pulls, config.max_held_pulls_per_connection)
