"""Tells of producers. Command of mqadmin: producerConnection."""

from __future__ import annotations

from cometmq.admin.group_records import Connection, connection_of
from cometmq.admin.room import Room
from cometmq.admin.servers import readable_of
from cometmq.errors import RemoteError
from cometmq.model.names import check_group
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import GetProducerConnectionListRequestHeader


class Producers(Room):
    """Asks brokers about producers, which they know by their groups."""

    async def connections(self, group: str, topic: str) -> list[Connection]:
        """Return the members of a producer group at the brokers of a topic.

        A producer connects to the brokers of the topics that it sends to. Raises RemoteError
        (CONSUMER_NOT_ONLINE) if no broker has a member.
        """
        check_group(group)
        what = f"the producers of group {group}"
        header = GetProducerConnectionListRequestHeader(producer_group=group)

        async def ask(address: str) -> list[Connection]:
            try:
                answer = await self._servers.ask(
                    address, requests.GET_PRODUCER_CONNECTION_LIST, header, what=what
                )
            except RemoteError as error:
                if error.code == ResponseCode.SYSTEM_ERROR and "not exist" in (error.remark or ""):
                    return []  # as brokers say that the group has no member
                raise
            return [connection_of(body) for body in answer.body.connection_set]

        addresses = readable_of(await self._servers.route(topic)).values()
        found = await self._servers.each(addresses, ask, what)
        clients = {client.client_id: client for each in found.values() for client in each}
        if not clients:
            raise RemoteError(
                f"producer group {group} is not online: no member of it is connected to a broker of "
                f"topic {topic}; check both names, and that a member has sent to the topic",
                code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        return [clients[client_id] for client_id in sorted(clients)]
