"""A cluster to which something happens."""

from __future__ import annotations

from cometmq.model.topic import TopicConfig
from cometmq.testing.cluster import Cluster


class ChangingCluster(Cluster):
    """Its topics, routes and logs change while it runs."""

    async def set_queues(self, index: int, topic: str, count: int) -> None:
        config = TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)
        self.brokers[index].topics.put(config)
        await self.register()

    async def forget_routes(self) -> None:
        """The name server begins again, and brokers come back to it."""
        await self.restart_name_server()
        await self.register()

    async def register(self) -> None:
        for broker in self.brokers:
            await broker.registration.register_all()

    async def expire(self, index: int) -> None:
        """Retention takes the oldest file of the log, or more."""
        await self.stop_broker(index)
        logs = self.directory / f"broker-{chr(ord('a') + index)}" / "commitlog"
        for file in sorted(logs.iterdir())[:-1][:3]:
            file.unlink()
        await self.start_broker(index)
