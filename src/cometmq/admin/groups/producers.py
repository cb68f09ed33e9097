"""List producers. Commands of mqadmin: producerConnection, producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.admin.groups.records import Connection, connection_of
from cometmq.admin.room import Room
from cometmq.admin.routed import readable_of
from cometmq.errors import RemoteError
from cometmq.model.names import check_group
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import ProducerInfo, ProducerTableInfo
from cometmq.protocol.codes import ResponseCode, version_text
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import GetProducerConnectionListRequestHeader


@dataclass(frozen=True, slots=True)
class SeenProducer(Connection):
    """A producer, and when its last heartbeat came, in ms since the epoch."""

    last_seen_ms: int


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
                    return []  # a broker's answer for a group without a member
                raise
            return [connection_of(body) for body in answer.body.connection_set]

        route = await self._servers.route(topic)
        found = await self._servers.each(
            readable_of(route).values(), ask, what, missing=self._servers.missing_of(route)
        )
        clients = joined(found)
        if not clients:
            raise RemoteError(
                f"producer group {group} is not online: no member of it is connected to a broker of "
                f"topic {topic}; check both names, and that a member has sent to the topic",
                code=ResponseCode.CONSUMER_NOT_ONLINE,
            )
        return clients

    async def of_brokers(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, dict[str, list[SeenProducer]]]:
        """Return the members of all producer groups of each broker, by address and group.

        Brokers before 4.9.4 do not know the request.
        """
        what = "all producers"
        return await self._ask_brokers(
            requests.GET_ALL_PRODUCER_INFO,
            NoHeader(),
            what=what,
            read=lambda answer: _seen_producers(answer.body),
            cluster=cluster,
            broker=broker,
        )


def joined(found: Mapping[str, list[Connection]]) -> list[Connection]:
    """Join the producers that several brokers know, sorted by client id."""
    clients = {client.client_id: client for each in found.values() for client in each}
    return [clients[client_id] for client_id in sorted(clients)]


def _seen_producers(body: bytes) -> dict[str, list[SeenProducer]]:
    found = decode_body(body, ProducerTableInfo).data
    return {group: [_seen(member) for member in found[group]] for group in sorted(found)}


def _seen(info: ProducerInfo) -> SeenProducer:
    return SeenProducer(
        info.client_id,
        info.remote_ip.removeprefix("/"),
        info.language,
        version_text(info.version),
        info.last_update_timestamp,
    )
